// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "offload/detail/client/client_checks.h"
#include "offload/detail/client/client_update.h"
#include "offload/detail/client/tensor_engine.h"
#include "offload/detail/gradients/gradient_norm.h"

namespace spillway::offload::detail {
namespace {

/// Stands for the values of a tensor that has none.
constexpr float no_elements = 0;

}  // namespace

void TensorEngine::set_groups(HyperGroups changed, std::uint32_t group) {
    monitor_.throw_if_poisoned();
    changed.check(options_.state);
    const auto needed = changed.needs().state_planes;
    if (needed > state_planes())
        throw std::invalid_argument(fmt::format(
            "group {}: {} with these hyper-parameters keeps {} values per parameter, and the "
            "optimizer was made for {}: make a new one",
            group, changed.optimizer_name(group), needed, state_planes()));
    groups_ = std::move(changed);
}

void TensorEngine::rebind(TensorId tensor, void* data) {
    check_tensor(tensor);
    check_data(parameters_[tensor], data, elements(tensor));
    wait();
    parameters_[tensor].data = data;
    tensors_[tensor].data = data;
}

void TensorEngine::give_gradient(TensorId tensor, Gradient gradient) {
    monitor_.throw_if_poisoned();
    check_tensor(tensor);
    if (elements(tensor) == 0)
        gradient.data = &no_elements;
    check_gradient(parameters_[tensor], gradient);
    if (!current_gradients()->give(tensor, {gradient.data, gradient.type}))
        throw std::logic_error(fmt::format("the gradient of '{}' was given before in this step",
                                           parameters_[tensor].name));
}

void TensorEngine::discard_gradients() {
    monitor_.throw_if_poisoned();
    if (streaming_)
        throw std::logic_error(
            "gradients of a streamed step are used as they come and cannot be discarded");
    current_gradients()->clear();
}

StepReport TensorEngine::begin_step(const StepRule& rule, const std::stop_token& stop) {
    check_ready("begin_step");
    check_scale(rule.gradient_scale);
    const bool looks = rule.max_norm.has_value() || rule.nonfinite != NonfiniteRule::propagate;
    if (rule.max_norm && !(*rule.max_norm > 0))
        throw std::invalid_argument(
            fmt::format("max_norm is {} and must be more than 0", *rule.max_norm));
    wait();
    StepReport report;
    const auto gradients = current_gradients();
    gradients->close();
    try {
        double scale = rule.gradient_scale;
        if (looks)
            scale *= judge(rule, *gradients, stop, report);
        report.applied = report.nonfinite == 0 || rule.nonfinite == NonfiniteRule::propagate;
        if (report.applied)
            begin_update(gradients, scale);
    } catch (
        ...) {  // stopped, or hyper-parameters and scale that give no step: nothing has changed
        gradients->reopen();
        throw;
    }
    replace_gradients();
    if (report.nonfinite != 0 && rule.nonfinite == NonfiniteRule::stop)
        throw NonfiniteGradient(
            fmt::format("the gradient of '{}' holds an infinity or a NaN ({} elements of all "
                        "gradients); the step was not taken",
                        report.nonfinite_tensor, report.nonfinite));
    return report;
}

void TensorEngine::begin_streamed_step(double gradient_scale) {
    check_ready("begin_streamed_step");
    check_scale(gradient_scale);
    wait();
    if (!current_gradients()->empty())
        throw std::logic_error(
            "begin_streamed_step: gradients were given before it; discard them or take a step");
    begin_update(current_gradients(), gradient_scale);
    streaming_ = true;
}

void TensorEngine::end_gradients() {
    monitor_.throw_if_poisoned();
    if (!streaming_)
        throw std::logic_error("end_gradients: no streamed step is under way");
    current_gradients()->close();
    streaming_ = false;
    replace_gradients();
}

bool TensorEngine::is_updated(const Monitor::Lock& lock, TensorId tensor) const noexcept {
    const auto range = order_.range(tensor);
    const auto chunk_elements = plan_.update.chunk_tiles * tile_elements;
    for (auto chunk = range.begin / chunk_elements; chunk * chunk_elements < range.end; ++chunk) {
        if (!board_.readable(lock, chunk, version_))
            return false;
    }
    return true;
}

void TensorEngine::wait_for(TensorId tensor) {
    check_tensor(tensor);
    auto lock = monitor_.lock();
    monitor_.wait(lock, [&] { return is_updated(lock, tensor); });
}

bool TensorEngine::wait_for(TensorId tensor, std::chrono::milliseconds limit) {
    check_tensor(tensor);
    auto lock = monitor_.lock();
    return monitor_.wait_for(lock, limit, [&] { return is_updated(lock, tensor); });
}

void TensorEngine::begin_update(const std::shared_ptr<StepGradients>& gradients, double scale) {
    const ClientUpdate::Context context{
        *store_,  plan_.update,    committer_ ? &*committer_ : nullptr,
        threads_, tensors_,        options_.rounding_seed,
        memory_,  options_.average};
    auto update = std::make_unique<ClientUpdate>(context, gradients, groups_, scale);
    pipeline_->begin_update(std::move(update), ++version_);
}

/// Norm and finiteness into the report; returns the clip coefficient.
double TensorEngine::judge(const StepRule& rule, const StepGradients& gradients,
                           const std::stop_token& stop, StepReport& report) {
    const auto found = gradient_norm(order_, gradients, threads_, stop);
    report.norm = found.norm * std::abs(rule.gradient_scale);
    report.nonfinite = found.nonfinite;
    if (found.nonfinite != 0)
        report.nonfinite_tensor = parameters_[found.first_nonfinite].name;
    if (!rule.max_norm)
        return 1;
    const auto coefficient = *rule.max_norm / (*report.norm + 1e-6);
    return std::isnan(coefficient) ? 1 : std::min(1.0, coefficient);
}

std::shared_ptr<StepGradients> TensorEngine::new_gradients() {
    return std::make_shared<StepGradients>(monitor_, order_);
}

std::shared_ptr<StepGradients> TensorEngine::current_gradients() {
    const auto lock = monitor_.lock();
    return gradients_;
}

void TensorEngine::replace_gradients() {
    auto fresh = new_gradients();
    const auto lock = monitor_.lock();
    gradients_ = std::move(fresh);
}

}  // namespace spillway::offload::detail
