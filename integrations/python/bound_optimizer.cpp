// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/python/bound_optimizer.h"

#include <chrono>
#include <stdexcept>
#include <stop_token>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "integrations/python/hyper_fields.h"

namespace spillway::integrations {
namespace {

namespace nb = nanobind;
using offload::TensorId;

/// Fewer elements are looked at within the interval by any machine.
constexpr std::uint64_t elements_worth_watching = std::uint64_t{1} << 24;

cpu_optim::GradientType gradient_type(ElementType type) {
    switch (type) {
        case ElementType::bf16:
            return cpu_optim::GradientType::bf16;
        case ElementType::fp16:
            return cpu_optim::GradientType::fp16;
        default:
            return cpu_optim::GradientType::fp32;
    }
}

offload::Gradient gradient_of(const HostArray& array) {
    return {array.data, gradient_type(array.type)};
}

HostArray parameter_array(nb::handle array, const std::string& name) {
    return host_array(array, ArrayAccess::write, {ElementType::fp32, ElementType::bf16},
                      fmt::format("parameter '{}'", name));
}

}  // namespace

// ---------------------------------------------------------------- beginning and end

BoundOptimizer::BoundOptimizer(OptimizerMaker& maker, nb::iterable parameters,
                               std::string_view optimizer, nb::iterable groups,
                               offload::TensorOptimizerOptions options)
    : process_(::getpid()), groups_(hyper_of_groups(optimizer, groups)) {
    auto taken = take_parameters(parameters);
    given_.resize(taken.size());
    in_step_.resize(taken.size());
    optimizer_ = maker.make(std::move(taken), groups_, std::move(options));
}

BoundOptimizer::~BoundOptimizer() {
    if (::getpid() != process_) {
        // The threads it would join are the parent's, the locks are as they were when it forked.
        static_cast<void>(optimizer_.release());
        static_cast<void>(std::make_unique<decltype(recovery_)>(std::move(recovery_)).release());
        return;
    }
    const GilReleased no_gil(*this);
    recovery_ = {};
    optimizer_.reset();
}

BoundOptimizer::GilReleased::GilReleased(BoundOptimizer& optimizer) : optimizer_(optimizer) {
    if (optimizer_.ending_)
        return;
    ++optimizer_.calls_without_gil_;
    thread_ = PyEval_SaveThread();
}

BoundOptimizer::GilReleased::~GilReleased() {
    if (thread_ == nullptr)
        return;
    PyEval_RestoreThread(thread_);
    --optimizer_.calls_without_gil_;
}

std::vector<offload::Parameter> BoundOptimizer::take_parameters(nb::iterable parameters) {
    std::vector<offload::Parameter> result;
    for (const nb::handle item : parameters) {
        nb::tuple triple;
        std::uint32_t group = 0;
        if (!nb::try_cast(item, triple, false) || triple.size() != 3 ||
            !nb::isinstance<nb::str>(triple[0]) || !nb::try_cast(triple[2], group, true))
            throw nb::type_error(
                fmt::format("parameters[{}] must be a tuple (name, array, group)", result.size())
                    .c_str());
        const std::string name = nb::cast<nb::str>(triple[0]).c_str();
        auto array = parameter_array(triple[1], name);
        result.push_back({name, array.shape,
                          array.type == ElementType::bf16 ? offload::ParameterType::bf16
                                                          : offload::ParameterType::fp32,
                          group, array.data});
        names_.push_back(name);
        parameters_.push_back(std::move(array));
    }
    return result;
}

void BoundOptimizer::check_process() const {
    if (::getpid() == process_)
        return;
    throw std::runtime_error(fmt::format(
        "this optimizer belongs to process {} and does not work in process {}, which was forked "
        "from it: step in the parent only, or start the child by \"spawn\" and make a new "
        "optimizer there",
        process_, ::getpid()));
}

void BoundOptimizer::check_tensor(TensorId tensor) const {
    if (tensor >= names_.size())
        throw std::invalid_argument(
            fmt::format("there is no tensor {}: there are {}, from 0 on", tensor, names_.size()));
}

std::size_t BoundOptimizer::state_planes() const {
    check_process();
    return optimizer_->state_planes();
}

std::string BoundOptimizer::io_backend() const {
    check_process();
    return std::string(optimizer_->io_backend_name());
}

void BoundOptimizer::set_group(std::uint32_t group, nb::dict fields) {
    if (group >= groups_.size())
        throw std::invalid_argument(
            fmt::format("there is no group {}: there are {}, from 0 on", group, groups_.size()));
    auto changed = with_fields(groups_, group, fields, fmt::format("groups[{}]", group));
    changed.visit([&](const auto& list) {
        without_gil([&](auto& optimizer) { optimizer.set_group(group, list.at(group)); });
    });
    groups_ = std::move(changed);
}

void BoundOptimizer::rebind(TensorId tensor, nb::handle array) {
    check_process();
    check_tensor(tensor);
    auto moved = parameter_array(array, names_[tensor]);
    const HostArray& old = parameters_[tensor];
    if (moved.type != old.type || moved.elements != old.elements)
        throw std::invalid_argument(
            fmt::format("parameter '{}' has {} elements of {} bytes, the array to take its place "
                        "has {} of {}",
                        names_[tensor], old.elements, old.owner.itemsize(), moved.elements,
                        moved.owner.itemsize()));
    when_idle([&](auto& optimizer) { optimizer.rebind(tensor, moved.data); });
    parameters_[tensor] = std::move(moved);
}

// ---------------------------------------------------------------- gradients

HostArray BoundOptimizer::gradient_array(TensorId tensor, nb::handle array) const {
    check_tensor(tensor);
    const auto what = fmt::format("the gradient of '{}'", names_[tensor]);
    auto gradient = host_array(array, ArrayAccess::read,
                               {ElementType::fp32, ElementType::bf16, ElementType::fp16}, what);
    if (gradient.elements != parameters_[tensor].elements)
        throw std::invalid_argument(
            fmt::format("{} has {} elements, its parameter has {}: give one of the same shape",
                        what, gradient.elements, parameters_[tensor].elements));
    return gradient;
}

void BoundOptimizer::keep_gradient(TensorId tensor, HostArray array) {
    auto& kept = gradients_ == Gradients::of_this_step ? in_step_ : given_;
    kept[tensor] = std::move(array.owner);
}

void BoundOptimizer::give_gradient(TensorId tensor, nb::handle array) {
    check_process();
    auto gradient = gradient_array(tensor, array);
    {
        const GilReleased no_gil(*this);
        optimizer_->give_gradient(tensor, gradient_of(gradient));
    }
    keep_gradient(tensor, std::move(gradient));
}

void BoundOptimizer::give_gradients(const std::vector<TensorId>& tensors, nb::list arrays) {
    check_process();
    if (tensors.size() != arrays.size())
        throw std::invalid_argument(
            fmt::format("{} tensors and {} arrays: each tensor needs its gradient", tensors.size(),
                        arrays.size()));
    std::vector<HostArray> gradients;
    gradients.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
        gradients.push_back(gradient_array(tensors[i], arrays[i]));
    // The engine may read an array from the moment it is given, whatever becomes of the next one.
    std::size_t given = 0;
    const auto keep = [&] {
        for (std::size_t i = 0; i < given; ++i)
            keep_gradient(tensors[i], std::move(gradients[i]));
    };
    try {
        const GilReleased no_gil(*this);
        for (; given < tensors.size(); ++given)
            optimizer_->give_gradient(tensors[given], gradient_of(gradients[given]));
    } catch (...) {
        keep();
        throw;
    }
    keep();
}

void BoundOptimizer::discard_gradients() {
    without_gil([](auto& optimizer) { optimizer.discard_gradients(); });
    given_.assign(given_.size(), {});
}

// ---------------------------------------------------------------- steps

offload::StepReport BoundOptimizer::begin_step(const offload::StepRule& rule) {
    try {
        auto report = begin_watched_step(rule);
        in_step_.swap(given_);
        given_.assign(given_.size(), {});
        if (!report.applied)
            in_step_.assign(in_step_.size(), {});
        return report;
    } catch (const offload::NonfiniteGradient&) {
        given_.assign(given_.size(), {});
        throw;
    }
}

/// Looking at the gradients may take long, and only a thread of its own leaves this one free.
offload::StepReport BoundOptimizer::begin_watched_step(const offload::StepRule& rule) {
    std::uint64_t elements = 0;
    for (std::size_t tensor = 0; tensor < given_.size(); ++tensor)
        elements += given_[tensor].is_valid() ? parameters_[tensor].elements : 0;
    if (elements < elements_worth_watching)
        return when_idle([&](auto& optimizer) { return optimizer.begin_step(rule); });
    if (gradients_ == Gradients::of_next_step)
        wait();
    check_process();
    std::stop_source stop;
    auto step = std::async(std::launch::async, [this, &rule, stopped = stop.get_token()] {
        const std::lock_guard one_at_a_time(calls_);
        return optimizer_->begin_step(rule, stopped);
    });
    try {
        watch(step);
        return step.get();
    } catch (nb::python_error& interrupt) {
        stop.request_stop();
        {
            const GilReleased no_gil(*this);
            step.wait();
        }
        try {
            auto report = step.get();
            interrupt_.emplace(std::move(interrupt));
            return report;
        } catch (const offload::StepStopped&) {
        } catch (...) {
            interrupt_.emplace(std::move(interrupt));
            throw;
        }
        throw;
    }
}

void BoundOptimizer::begin_streamed_step(double gradient_scale) {
    when_idle([&](auto& optimizer) { optimizer.begin_streamed_step(gradient_scale); });
    in_step_.assign(in_step_.size(), {});
    gradients_ = Gradients::of_this_step;
}

void BoundOptimizer::end_gradients() {
    without_gil([](auto& optimizer) { optimizer.end_gradients(); });
    gradients_ = Gradients::of_next_step;
}

void BoundOptimizer::wait_for(TensorId tensor) {
    check_process();
    check_tensor(tensor);
    while (
        !without_gil([&](auto& optimizer) { return optimizer.wait_for(tensor, signal_interval); }))
        check_signals();
    in_step_[tensor] = {};
}

void BoundOptimizer::wait() {
    if (interrupt_)
        throw *std::exchange(interrupt_, std::nullopt);
    while (!without_gil([](auto& optimizer) { return optimizer.wait(signal_interval); }))
        check_signals();
    in_step_.assign(in_step_.size(), {});
}

void BoundOptimizer::drain() {
    if (::getpid() != process_)
        return;
    ending_ = true;
    if (gradients_ == Gradients::of_this_step)
        return;
    while (calls_without_gil_ != 0) {
        const nb::gil_scoped_release no_gil;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    try {
        wait();
    } catch (const nb::python_error&) {
        throw;
    } catch (const std::exception&) {
        // A failed update is over; whoever wanted to know of it would have waited for it.
        return;
    }
}

// ---------------------------------------------------------------- commits

std::optional<offload::TensorCommit> BoundOptimizer::recover() {
    if (!recovery_.valid()) {
        wait();
        recovery_ = std::async(std::launch::async, [this] {
            const std::lock_guard one_at_a_time(calls_);
            return optimizer_->recover();
        });
    }
    watch(recovery_);
    return std::exchange(recovery_, {}).get();
}

void BoundOptimizer::commit(std::uint64_t iteration, std::string client_state) {
    const offload::TensorCommit note{iteration, std::move(client_state)};
    when_idle([&](auto& optimizer) { optimizer.begin_commit(note); });
    wait();
}

offload::TensorOptimizerStatistics BoundOptimizer::statistics() {
    return without_gil([](auto& optimizer) { return optimizer.statistics(); });
}

}  // namespace spillway::integrations
