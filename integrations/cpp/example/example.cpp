// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// A program of its own kind: it denoises the three channels of an image by AdamW whose state lies
// on a drive. Every channel's gradient comes from a thread of its own, and a channel is updated as
// soon as its gradient is there. It commits half-way, is opened again and goes on; the end must be
// the bits of an uninterrupted run.
//
//     example FOLDER      an existing, empty folder on the drive
//
// CMakeLists.txt beside it builds it against an installed Spillway.

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "integrations/cpp/tensor_export.h"
#include "offload/tensor_optimizer.h"

namespace {

namespace offload = spillway::offload;

constexpr std::uint64_t height = 640, width = 512;
constexpr std::uint64_t steps = 12, commit_after = 5;
constexpr float smoothness = 2;
constexpr std::array<const char*, 3> channel_names{"red", "green", "blue"};

using Channel = std::vector<float>;  ///< height x width, row by row
using Image = std::array<Channel, 3>;

/// A smooth picture with noise on it.
Image noisy_image() {
    Image image;
    std::uint32_t random = 1;
    for (std::size_t c = 0; c < image.size(); ++c) {
        for (std::uint64_t i = 0; i < height * width; ++i) {
            random = random * 1664525u + 1013904223u;  // Numerical Recipes, "ranqd1"
            const auto noise = static_cast<float>(random >> 8) / 16777216.0f - 0.5f;
            const auto wave = static_cast<float>(i % width) / 80 + static_cast<float>(c);
            image[c].push_back(std::sin(wave) + noise);
        }
    }
    return image;
}

/// Of the energy (u - noisy)^2 + smoothness * (differences of neighbours)^2, summed over the
/// pixels; `gradient` is set, the energy per pixel returned.
double energy(const Channel& u, const Channel& noisy, Channel& gradient) {
    double sum = 0;
    gradient.assign(u.size(), 0);
    const auto couple = [&](std::uint64_t a, std::uint64_t b) {
        const float difference = u[a] - u[b];
        gradient[a] += 2 * smoothness * difference;
        gradient[b] -= 2 * smoothness * difference;
        sum += smoothness * difference * difference;
    };
    for (std::uint64_t y = 0; y < height; ++y) {
        for (std::uint64_t x = 0; x < width; ++x) {
            const auto i = y * width + x;
            const float difference = u[i] - noisy[i];
            gradient[i] += 2 * difference;
            sum += difference * difference;
            if (x + 1 < width)
                couple(i, i + 1);
            if (y + 1 < height)
                couple(i, i + width);
        }
    }
    return sum / (height * width);
}

/// `out` empty: a run without commits.
offload::TensorOptimizer open_optimizer(Image& image, const std::filesystem::path& drive,
                                        const std::filesystem::path& out) {
    std::vector<offload::Parameter> parameters;
    for (std::size_t c = 0; c < image.size(); ++c)
        parameters.push_back(
            {.name = channel_names[c], .shape = {height, width}, .data = image[c].data()});
    spillway::cpu_optim::AdamHyperParameters adam;
    adam.learning_rate = 0.03;
    adam.weight_decay = 0;
    offload::TensorOptimizerOptions options;
    options.host_bytes = std::size_t{8} << 20;  // the state, 7.9 MB, and staging would take more
    options.nvme = drive;
    options.out = out;
    options.isa = spillway::cpu_optim::best_isa();
    return {std::move(parameters), {adam}, std::move(options)};
}

void train(offload::TensorOptimizer& optimizer, const Image& image, const Image& noisy,
           std::uint64_t from, std::uint64_t to) {
    Image gradients;
    std::array<double, 3> losses{};
    for (std::uint64_t step = from; step < to; ++step) {
        optimizer.begin_streamed_step(1.0);
        {
            std::vector<std::jthread> threads;
            for (std::size_t c = 0; c < image.size(); ++c) {
                threads.emplace_back([&, c] {
                    losses[c] = energy(image[c], noisy[c], gradients[c]);
                    optimizer.give_gradient(static_cast<offload::TensorId>(c),
                                            {gradients[c].data()});
                });
            }
        }
        optimizer.end_gradients();
        optimizer.wait();
        std::cout << "step " << step + 1 << "  loss " << losses[0] + losses[1] + losses[2] << '\n';
    }
}

Image straight_run(const std::filesystem::path& drive, const Image& noisy) {
    Image image = noisy;
    auto optimizer = open_optimizer(image, drive, {});
    const auto statistics = optimizer.statistics();
    std::cout << "state on the drive: " << statistics.state_bytes - statistics.resident_state_bytes
              << " of " << statistics.state_bytes << " bytes\n";
    train(optimizer, image, noisy, 0, steps);
    return image;
}

void first_half(const std::filesystem::path& drive, const Image& noisy) {
    Image image = noisy;
    auto optimizer = open_optimizer(image, drive, drive / "run");
    train(optimizer, image, noisy, 0, commit_after);
    optimizer.begin_commit({.iteration = commit_after, .client_state = "half-way"});
    optimizer.wait();
}

Image second_half(const std::filesystem::path& drive, const Image& noisy) {
    Image image;
    for (auto& channel : image)
        channel.resize(height * width);  // recover() brings the values
    auto optimizer = open_optimizer(image, drive, drive / "run");
    const auto commit = optimizer.recover();
    if (!commit)
        throw std::runtime_error("there is no commit in " + (drive / "run").string());
    std::cout << "resumed at step " << commit->iteration << '\n';
    train(optimizer, image, noisy, commit->iteration, steps);
    spillway::integrations::export_masters(optimizer, drive / "image.safetensors",
                                           spillway::engine::TensorDtype::f32);
    return image;
}

int run(const std::filesystem::path& folder) {
    const Image noisy = noisy_image();
    const Image straight = straight_run(folder, noisy);
    first_half(folder, noisy);
    const Image resumed = second_half(folder, noisy);
    for (std::size_t c = 0; c < straight.size(); ++c) {
        if (std::memcmp(straight[c].data(), resumed[c].data(), 4 * straight[c].size()) != 0) {
            std::cerr << "the resumed " << channel_names[c] << " differs\n";
            return 1;
        }
    }
    std::cout << "the resumed image is bit-equal to the uninterrupted run's\n";
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) {
        std::cerr << "usage: " << arguments[0] << " FOLDER\n";
        return 2;
    }
    try {
        return run(arguments[1]);
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
