// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/update_calibration.h"

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <xxhash.h>

#include "cpu_optim/isa.h"
#include "engine/compute/compute_pool.h"
#include "engine/measure/median.h"
#include "engine/settings/optimizer_choice.h"
#include "nvme/huge_page_arena.h"
#include "offload/plane.h"
#include "offload/tensor_optimizer.h"

namespace spillway::engine {
namespace {

constexpr std::uint64_t tensor_elements = std::uint64_t{1} << 20;
constexpr std::uint64_t least_elements = offload::tile_elements;
constexpr std::size_t weight_bytes = 2;
constexpr std::size_t gradient_bytes = 4;
constexpr std::size_t least_passes = 3;

/// Weights and gradients of a model in the client's memory: bf16, and fp32 as passes leave them.
class Model {
  public:
    explicit Model(std::uint64_t elements)
        : elements_(elements),
          weights_(static_cast<std::size_t>(elements) * weight_bytes),
          gradients_(static_cast<std::size_t>(elements) * gradient_bytes) {
        // Ordinary values of both signs, from hashes of their number (Knuth's multiplier).
        for (std::uint64_t i = 0; i < elements; ++i) {
            const auto hash = static_cast<std::uint32_t>(i * 2654435761U);
            weights()[i] = static_cast<std::uint16_t>((hash & 0x8000U) | 0x3C00U | (hash & 0x7FU));
            gradients()[i] = (static_cast<float>(hash >> 8 & 0xFFFFU) - 32767.5F) * 1e-8F;
        }
    }

    [[nodiscard]] std::vector<offload::Parameter> parameters() const {
        std::vector<offload::Parameter> all;
        for (std::uint64_t first = 0; first < elements_; first += tensor_elements)
            all.push_back({fmt::format("{}", all.size()),
                           {std::min(tensor_elements, elements_ - first)},
                           offload::ParameterType::bf16,
                           0,
                           weights() + first});
        return all;
    }
    [[nodiscard]] offload::Gradient gradient(offload::TensorId tensor) const {
        return {gradients() + tensor * tensor_elements, cpu_optim::GradientType::fp32};
    }

  private:
    [[nodiscard]] std::uint16_t* weights() const {
        return reinterpret_cast<std::uint16_t*>(weights_.bytes().data());
    }
    [[nodiscard]] float* gradients() const {
        return reinterpret_cast<float*>(gradients_.bytes().data());
    }

    std::uint64_t elements_;
    nvme::HugePageArena weights_;
    nvme::HugePageArena gradients_;
};

double update_rate(const TrainSettings& settings, std::uint64_t elements) {
    constexpr double limit_s = 0.3;
    constexpr std::size_t beside_state_bytes = std::size_t{64} << 20;
    const Model model(elements);
    offload::TensorOptimizerOptions options;
    options.host_bytes =
        beside_state_bytes + static_cast<std::size_t>(static_cast<double>(elements) *
                                                      rest_bytes_per_parameter(settings));
    options.state = cpu_optim::parse_state_format(settings.state);
    options.threads = settings.threads;
    options.isa = cpu_optim::parse_isa(settings.isa);
    // Thousands of steps on one gradient: larger ones might not end in numbers.
    constexpr double most_lr = 1e-6;
    offload::TensorOptimizer optimizer(
        model.parameters(), hyper_groups(settings, std::min(settings.lr, most_lr)), options);
    const auto step = [&] {
        for (offload::TensorId tensor = 0; tensor < optimizer.parameters().size(); ++tensor)
            optimizer.give_gradient(tensor, model.gradient(tensor));
        static_cast<void>(optimizer.begin_step({}));
        optimizer.wait();
    };
    return static_cast<double>(elements) / median_pass_s(limit_s, least_passes, step);
}

double checksum_rate(const TrainSettings& settings) {
    constexpr double limit_s = 0.02;
    constexpr std::size_t piece_bytes = std::size_t{64} << 10;  // a tile of fp32 values
    constexpr std::size_t turns = 16;
    ComputePool pool(settings.threads, cpu_optim::parse_isa(settings.isa));
    std::vector<std::byte> pieces(settings.threads * piece_bytes, std::byte{1});
    std::vector<XXH64_hash_t> found(settings.threads);
    const auto pass = [&] {
        pool.for_each(settings.threads, [&](std::size_t piece) {
            for (std::size_t turn = 0; turn < turns; ++turn)
                found[piece] += XXH3_64bits(pieces.data() + piece * piece_bytes, piece_bytes);
        });
    };
    return static_cast<double>(pieces.size() * turns) / median_pass_s(limit_s, least_passes, pass);
}

}  // namespace

UpdateSpeed calibrate_update(const TrainSettings& settings, std::uint64_t parameters,
                             std::size_t memory_bytes) {
    // Work buffers, tables, and arenas that are rounded up.
    constexpr std::size_t beside_bytes = std::size_t{16} << 20;
    const auto room_bytes =
        memory_bytes > 2 * beside_bytes ? memory_bytes - beside_bytes : memory_bytes / 2;
    const auto most = static_cast<std::uint64_t>(
        static_cast<double>(room_bytes) / (rest_bytes_per_parameter(settings) + gradient_bytes));
    const auto elements = std::max(least_elements, std::min(parameters, most));
    return {.parameters_per_s = update_rate(settings, elements),
            .checksum_bytes_per_s = checksum_rate(settings)};
}

}  // namespace spillway::engine
