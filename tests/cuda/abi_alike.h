// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <type_traits>

namespace spillway::cuda::testing {

template <typename Ours, typename Theirs>
constexpr bool passed_alike() {
    if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>)
        return std::is_void_v<Ours> && std::is_void_v<Theirs>;
    else
        return sizeof(Ours) == sizeof(Theirs) &&
               std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
}

/// Whether a pointer to a function of ours calls a function of theirs as its caller would.
template <typename Ours, typename Theirs>
struct Alike : std::false_type {};
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
struct Alike<OurResult (*)(Ours...), TheirResult(Theirs...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(Ours) == sizeof...(Theirs))
            return passed_alike<OurResult, TheirResult>() && (passed_alike<Ours, Theirs>() && ...);
        else
            return false;
    }();
};

}  // namespace spillway::cuda::testing
