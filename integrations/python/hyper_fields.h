// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <string_view>

#include <nanobind/nanobind.h>

#include "offload/hyper_groups.h"

namespace spillway::integrations {

/// `groups` with the fields of one of them that `fields` names. The keys are those of the struct;
/// choices of two are booleans, but "decay" is "decoupled" or "l2". `what` names the group in
/// errors. Throws std::invalid_argument on an unknown key or value, nanobind::type_error on another
/// type. The ranges of numbers are checked by HyperGroups::check().
[[nodiscard]] offload::HyperGroups with_fields(const offload::HyperGroups& groups,
                                               std::size_t group, nanobind::dict fields,
                                               std::string_view what);

/// A dict for each group, over the defaults of "adam" (AdamW and NAdam too), "sgd", "adagrad",
/// "lion", "rmsprop", "lamb", "lars" or "adafactor". Throws std::invalid_argument naming the
/// optimizer given and what is accepted, and as with_fields().
[[nodiscard]] offload::HyperGroups hyper_of_groups(std::string_view optimizer,
                                                   nanobind::iterable groups);

}  // namespace spillway::integrations
