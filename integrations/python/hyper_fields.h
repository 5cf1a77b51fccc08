// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>

#include "cpu_optim/elementwise.h"

namespace spillway::integrations {

/// The defaults of "adam" (AdamW and NAdam too), "sgd", "adagrad", "lion" or "rmsprop". Throws
/// std::invalid_argument naming the value and what is accepted.
[[nodiscard]] cpu_optim::HyperParameters default_hyper(std::string_view optimizer);

/// `hyper` with the fields that `fields` names. The keys are those of the struct; choices of two
/// are booleans, but "decay" is "decoupled" or "l2". `what` names the group in errors. Throws
/// std::invalid_argument on an unknown key or value, nanobind::type_error on another type. The
/// ranges of numbers are checked by cpu_optim::check().
[[nodiscard]] cpu_optim::HyperParameters with_fields(cpu_optim::HyperParameters hyper,
                                                     nanobind::dict fields, std::string_view what);

/// A dict for each group: with_fields() of the defaults.
[[nodiscard]] std::vector<cpu_optim::HyperParameters> hyper_of_groups(std::string_view optimizer,
                                                                      nanobind::iterable groups);

}  // namespace spillway::integrations
