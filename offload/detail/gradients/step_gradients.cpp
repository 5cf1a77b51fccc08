// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/gradients/step_gradients.h"

#include <algorithm>

namespace spillway::offload::detail {

bool StepGradients::give(TensorId tensor, GradientPlace place) {
    const auto lock = monitor_.lock();
    if (closed_ || places_[tensor].data != nullptr)
        return false;
    places_[tensor] = place;
    ++given_;
    monitor_.notify();
    return true;
}

void StepGradients::close() {
    const auto lock = monitor_.lock();
    closed_ = true;
    monitor_.notify();
}

void StepGradients::reopen() {
    const auto lock = monitor_.lock();
    closed_ = false;
}

bool StepGradients::empty() const {
    const auto lock = monitor_.lock();
    return given_ == 0;
}

void StepGradients::clear() {
    const auto lock = monitor_.lock();
    std::fill(places_.begin(), places_.end(), GradientPlace{});
    given_ = 0;
}

void StepGradients::wait_for(TensorId first, TensorId last) {
    auto lock = monitor_.lock();
    monitor_.wait(lock, [&] { return are_there(lock, first, last); });
}

bool StepGradients::are_there(TensorId first, TensorId last) const {
    const auto lock = monitor_.lock();
    return are_there(lock, first, last);
}

bool StepGradients::are_there(const Monitor::Lock&, TensorId first, TensorId last) const {
    for (auto tensor = first; tensor < last && !closed_; ++tensor) {
        if (places_[tensor].data == nullptr && order_.range(tensor).size() != 0)
            return false;
    }
    return true;
}

void StepGradients::wait_closed() {
    auto lock = monitor_.lock();
    monitor_.wait(lock, [&] { return closed_; });
}

}  // namespace spillway::offload::detail
