// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/python/optimizer_maker.h"

#include <atomic>
#include <exception>
#include <utility>

#include <unistd.h>

namespace spillway::integrations {
namespace {

namespace nb = nanobind;

enum class Fate { undecided, made, unwanted };

/// False: a handler raised, and `error` has what.
template <typename Result>
bool watch(const std::future<Result>& result, std::exception_ptr& error) {
    try {
        for (;;) {
            {
                const nb::gil_scoped_release no_gil;
                if (result.wait_for(signal_interval) == std::future_status::ready)
                    return true;
            }
            check_signals();
        }
    } catch (const nb::python_error&) {
        error = std::current_exception();
        return false;
    }
}

}  // namespace

void check_signals() {
    if (PyErr_CheckSignals() != 0)
        throw nb::python_error();
}

OptimizerMaker::OptimizerMaker() : process_(::getpid()) {}

OptimizerMaker::~OptimizerMaker() {
    forget_the_parents();
}

/// Threads do not survive a fork, so in a child nothing of the parent's ever ends.
void OptimizerMaker::forget_the_parents() {
    if (::getpid() == process_)
        return;
    for (auto& parents : unfinished_)
        static_cast<void>(std::make_unique<Made>(std::move(parents)).release());
    unfinished_.clear();
    process_ = ::getpid();
}

std::unique_ptr<offload::TensorOptimizer> OptimizerMaker::make(
    std::vector<offload::Parameter> parameters, offload::HyperGroups groups,
    offload::TensorOptimizerOptions options) {
    forget_the_parents();
    wait_for_unfinished();
    const auto fate = std::make_shared<std::atomic<Fate>>(Fate::undecided);
    auto made = std::async(std::launch::async,
                           [fate, parameters = std::move(parameters), groups = std::move(groups),
                            options = std::move(options)]() mutable {
                               auto optimizer = std::make_unique<offload::TensorOptimizer>(
                                   std::move(parameters), std::move(groups), std::move(options));
                               if (fate->exchange(Fate::made) == Fate::unwanted)
                                   optimizer.reset();
                               return optimizer;
                           });
    std::exception_ptr interrupt;
    if (watch(made, interrupt)) {
        const nb::gil_scoped_release no_gil;
        return made.get();
    }
    if (fate->exchange(Fate::unwanted) == Fate::undecided) {
        unfinished_.push_back(std::move(made));
    } else {
        const nb::gil_scoped_release no_gil;
        made = {};  // waits for the last instructions and frees the optimizer
    }
    std::rethrow_exception(interrupt);
}

void OptimizerMaker::wait_for_unfinished() {
    while (!unfinished_.empty()) {
        auto made = std::move(unfinished_.back());
        unfinished_.pop_back();
        std::exception_ptr interrupt;
        if (watch(made, interrupt))
            continue;
        unfinished_.push_back(std::move(made));
        std::rethrow_exception(interrupt);
    }
}

void OptimizerMaker::drain() {
    forget_the_parents();
    while (!unfinished_.empty()) {
        auto made = std::move(unfinished_.back());
        unfinished_.pop_back();
        const nb::gil_scoped_release no_gil;
        made = {};
    }
}

}  // namespace spillway::integrations
