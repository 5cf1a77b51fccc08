// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "integrations/c/spillway.h"

namespace spillway::testing {

inline constexpr std::uint64_t c_rows = 6, c_columns = 7, c_bias = 5;
enum : std::uint32_t { c_weight_tensor, c_bias_tensor };

/// The arguments of a small optimizer of SGD without momentum at a learning rate of 1/2 (so that
/// expected weights are exact), open to change before create().
struct COptimizerArguments {
    std::array<std::uint64_t, 2> weight_shape{c_rows, c_columns};
    std::array<std::uint64_t, 1> bias_shape{c_bias};
    std::vector<float> weight = std::vector<float>(c_rows * c_columns, 1.0f);
    std::vector<float> bias = std::vector<float>(c_bias, 2.0f);
    std::array<spillway_parameter, 2> parameters{};
    std::array<spillway_group, 1> groups{};
    spillway_options options{};
    std::string out, nvme;

    explicit COptimizerArguments(spillway_optimizer_kind kind = SPILLWAY_SGD) {
        for (auto& parameter : parameters)
            spillway_parameter_init(&parameter, sizeof parameter);
        parameters[0].name = "weight";
        parameters[0].shape = weight_shape.data();
        parameters[0].dimensions = 2;
        parameters[0].data = weight.data();
        parameters[1].name = "bias";
        parameters[1].shape = bias_shape.data();
        parameters[1].dimensions = 1;
        parameters[1].data = bias.data();
        spillway_group_init(&groups[0], sizeof groups[0], kind);
        groups[0].learning_rate = 0.5;
        spillway_options_init(&options, sizeof options);
        options.host_bytes = std::uint64_t{64} << 20;
    }
    COptimizerArguments(const COptimizerArguments&) = delete;  // the structs point into it
    COptimizerArguments& operator=(const COptimizerArguments&) = delete;

    void commit_to(const std::filesystem::path& folder) {
        out = folder.string();
        options.out = out.c_str();
    }
    void offload_to(const std::filesystem::path& folder) {
        nvme = folder.string();
        options.nvme = nvme.c_str();
    }
    [[nodiscard]] spillway_status create(spillway_optimizer** optimizer) const {
        return spillway_optimizer_create(parameters.data(), parameters.size(), groups.data(),
                                         groups.size(), &options, optimizer);
    }
};

/// No clipping, whatever is not finite goes on.
inline spillway_step_rule plain_rule() {
    spillway_step_rule rule;
    spillway_step_rule_init(&rule, sizeof rule);
    return rule;
}

/// Owns a handle.
class COptimizer {
  public:
    explicit COptimizer(const COptimizerArguments& arguments) {
        if (arguments.create(&handle_) != SPILLWAY_OK)
            throw std::runtime_error(spillway_last_error(nullptr));
    }
    ~COptimizer() { spillway_optimizer_destroy(handle_); }
    COptimizer(const COptimizer&) = delete;
    COptimizer& operator=(const COptimizer&) = delete;

    [[nodiscard]] spillway_optimizer* get() const noexcept { return handle_; }
    [[nodiscard]] std::string error() const { return spillway_last_error(handle_); }

    [[nodiscard]] spillway_status give(std::uint32_t tensor, const std::vector<float>& gradient) {
        return spillway_give_gradient(handle_, tensor, gradient.data(), gradient.size(),
                                      SPILLWAY_GRADIENT_FP32);
    }
    /// It is read until the step is over.
    spillway_status give(std::uint32_t tensor, std::vector<float>&& gradient) = delete;
    /// A plain step under `rule` (default: no clipping, propagate), waited for.
    [[nodiscard]] spillway_status step(spillway_step_report* report = nullptr,
                                       const spillway_step_rule* rule = nullptr) {
        const auto plain = plain_rule();
        const auto status = spillway_begin_step(handle_, rule == nullptr ? &plain : rule, report);
        return status == SPILLWAY_OK ? spillway_wait(handle_) : status;
    }

  private:
    spillway_optimizer* handle_ = nullptr;
};

/// After something was refused: a step does what it should.
inline void check_still_works(COptimizer& optimizer, const COptimizerArguments& arguments) {
    REQUIRE(spillway_discard_gradients(optimizer.get()) == SPILLWAY_OK);
    const auto before = arguments.bias;
    const std::vector<float> gradient(c_bias, 1.0f);
    REQUIRE(optimizer.give(c_bias_tensor, gradient) == SPILLWAY_OK);
    REQUIRE(optimizer.step() == SPILLWAY_OK);
    for (std::size_t i = 0; i < c_bias; ++i)
        CHECK(arguments.bias[i] == before[i] - 0.5f);
}

}  // namespace spillway::testing
