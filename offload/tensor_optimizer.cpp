// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/tensor_optimizer.h"

#include <utility>

#include "offload/detail/client/tensor_engine.h"

namespace spillway::offload {

class TensorOptimizer::Impl final : public detail::TensorEngine {
  public:
    using TensorEngine::TensorEngine;
};

TensorOptimizer::TensorOptimizer(std::vector<Parameter> parameters, HyperGroups groups,
                                 TensorOptimizerOptions options)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(groups), std::move(options))) {}
TensorOptimizer::~TensorOptimizer() = default;

void TensorOptimizer::check_room(const std::vector<Parameter>& parameters,
                                 const HyperGroups& groups, TensorOptimizerOptions options) {
    Impl::check_room(parameters, groups, std::move(options));
}

std::span<const Parameter> TensorOptimizer::parameters() const noexcept {
    return impl_->parameters();
}
std::size_t TensorOptimizer::state_planes() const noexcept {
    return impl_->state_planes();
}
void TensorOptimizer::set_group(std::uint32_t group, const cpu_optim::HyperParameters& hyper) {
    impl_->set_groups(impl_->groups().with(group, hyper), group);
}
void TensorOptimizer::set_group(std::uint32_t group,
                                const cpu_optim::LayerwiseHyperParameters& hyper) {
    impl_->set_groups(impl_->groups().with(group, hyper), group);
}
void TensorOptimizer::set_group(std::uint32_t group,
                                const cpu_optim::AdafactorHyperParameters& hyper) {
    impl_->set_groups(impl_->groups().with(group, hyper), group);
}
void TensorOptimizer::rebind(TensorId tensor, void* data) {
    impl_->rebind(tensor, data);
}
void TensorOptimizer::give_gradient(TensorId tensor, Gradient gradient) {
    impl_->give_gradient(tensor, gradient);
}
void TensorOptimizer::discard_gradients() {
    impl_->discard_gradients();
}
StepReport TensorOptimizer::begin_step(const StepRule& rule, const std::stop_token& stop) {
    return impl_->begin_step(rule, stop);
}
void TensorOptimizer::begin_streamed_step(double gradient_scale) {
    impl_->begin_streamed_step(gradient_scale);
}
void TensorOptimizer::end_gradients() {
    impl_->end_gradients();
}
void TensorOptimizer::wait_for(TensorId tensor) {
    impl_->wait_for(tensor);
}
bool TensorOptimizer::wait_for(TensorId tensor, std::chrono::milliseconds limit) {
    return impl_->wait_for(tensor, limit);
}
void TensorOptimizer::wait() {
    impl_->wait();
}
bool TensorOptimizer::wait(std::chrono::milliseconds limit) {
    return impl_->wait(limit);
}
std::optional<TensorCommit> TensorOptimizer::recover() {
    return impl_->recover();
}
void TensorOptimizer::begin_commit(const TensorCommit& note) {
    impl_->begin_commit(note);
}
std::uint64_t TensorOptimizer::steps(TensorId tensor) const {
    return impl_->steps(tensor);
}
void TensorOptimizer::set_steps(TensorId tensor, std::uint64_t steps) {
    impl_->set_steps(tensor, steps);
}
void TensorOptimizer::read_state(TensorId tensor, std::size_t plane, std::uint64_t first,
                                 std::span<float> out) {
    impl_->read_state(tensor, plane, first, out);
}
void TensorOptimizer::write_state(TensorId tensor, std::size_t plane, std::uint64_t first,
                                  std::span<const float> values) {
    impl_->write_state(tensor, plane, first, values);
}
std::span<float> TensorOptimizer::state_view(TensorId tensor, std::size_t plane) {
    return impl_->state_view(tensor, plane);
}
std::uint64_t TensorOptimizer::factors(TensorId tensor) const {
    return impl_->factors(tensor);
}
void TensorOptimizer::read_factors(TensorId tensor, std::uint64_t first, std::span<float> out) {
    impl_->read_factors(tensor, first, out);
}
void TensorOptimizer::write_factors(TensorId tensor, std::uint64_t first,
                                    std::span<const float> values) {
    impl_->write_factors(tensor, first, values);
}
void TensorOptimizer::read_masters(TensorId tensor, std::uint64_t first, std::span<float> out) {
    impl_->read_masters(tensor, first, out);
}
void TensorOptimizer::read_average(TensorId tensor, std::uint64_t first, std::span<float> out) {
    impl_->read_average(tensor, first, out);
}
void TensorOptimizer::write_average(TensorId tensor, std::uint64_t first,
                                    std::span<const float> values) {
    impl_->write_average(tensor, first, values);
}
void TensorOptimizer::reset_residue(TensorId tensor) {
    impl_->reset_residue(tensor);
}
void TensorOptimizer::read_residue(TensorId tensor, std::uint64_t first,
                                   std::span<std::int16_t> out) {
    impl_->read_residue(tensor, first, out);
}
void TensorOptimizer::write_residue(TensorId tensor, std::uint64_t first,
                                    std::span<const std::int16_t> values) {
    impl_->write_residue(tensor, first, values);
}
TensorOptimizerStatistics TensorOptimizer::statistics() const {
    return impl_->statistics();
}
std::string_view TensorOptimizer::io_backend_name() const noexcept {
    return impl_->io_backend_name();
}

}  // namespace spillway::offload
