// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/update_calibration.h"

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include <xxhash.h>

#include "cpu_optim/isa.h"
#include "engine/compute/compute_pool.h"
#include "engine/measure/median.h"
#include "engine/measure/update_model.h"
#include "engine/settings/optimizer_choice.h"
#include "offload/plane.h"
#include "offload/tensor_optimizer.h"

namespace spillway::engine {
namespace {

constexpr std::uint64_t least_elements = offload::tile_elements;
constexpr std::size_t gradient_bytes = 4;
constexpr std::size_t least_passes = 3;

double update_rate(const TrainSettings& settings, std::uint64_t elements) {
    constexpr double limit_s = 0.3;
    constexpr std::size_t beside_state_bytes = std::size_t{64} << 20;
    const UpdateModel model(elements, elements);
    offload::TensorOptimizerOptions options;
    options.host_bytes =
        beside_state_bytes + static_cast<std::size_t>(static_cast<double>(elements) *
                                                      rest_bytes_per_parameter(settings));
    options.state = cpu_optim::parse_state_format(settings.state);
    options.threads = update_threads_of(settings.tuning, settings.threads);
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
