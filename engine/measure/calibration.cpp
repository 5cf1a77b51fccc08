// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/calibration.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <vector>

#include "cuda/host_mapping.h"
#include "engine/measure/median.h"
#include "engine/measure/memory_pass.h"
#include "engine/model/parameter_stream.h"
#include "nvme/huge_page_arena.h"
#include "offload/element_order.h"

namespace spillway::engine {
namespace {

/// A few places that the weights of all units take in turn, and their gradients: the time of a
/// resident model in less memory, and yet with weights that no cache holds where the run's will not
/// be held by one. The values mean nothing.
class FewPlacesStream final : public ParameterStream {
  public:
    /// At most as many places as `room_bytes` hold, at least one for each.
    FewPlacesStream(cuda::Device& device, cuda::Stream& compute, const Gpt2Config& config,
                    std::size_t room_bytes) {
        const offload::ElementOrder order(gpt2_tensors(config));
        std::uint64_t largest = 0;
        for (const auto& unit : gpt2_units(config))
            largest = std::max(largest, offload::unit_range(order, unit).size());
        constexpr std::size_t page_bytes = 4096;  // of which devices give whole ones
        const auto bytes = (static_cast<std::size_t>(largest) * sizeof(float) + page_bytes - 1) /
                           page_bytes * page_bytes;
        const auto places = std::min(room_bytes, most_bytes) / bytes;
        for (std::size_t place = 0; place + most_gradients < places || place == 0; ++place)
            weights_.push_back(device.allocate(bytes));
        for (std::size_t place = 0; place < std::clamp<std::size_t>(places, 2, 3) - 1; ++place)
            gradients_.push_back(device.allocate(bytes));
        constexpr std::chrono::milliseconds limit(500);
        const auto until = std::chrono::steady_clock::now() + limit;
        for (const auto& place : weights_)
            fill(device, compute, place, until);
    }

    [[nodiscard]] const float* acquire_weights(std::size_t) override {
        return weights_[weight_uses_++ % weights_.size()].as<const float>();
    }
    void release_weights(std::size_t) override {}
    [[nodiscard]] float* acquire_gradient(std::size_t) override {
        return gradients_[gradient_uses_++ % gradients_.size()].as<float>();
    }
    void release_gradient(std::size_t) override {}

  private:
    static constexpr std::size_t most_gradients = 2;                   ///< as in the memory manager
    static constexpr std::size_t most_bytes = std::size_t{512} << 20;  ///< no cache holds more

    /// Small values of both signs: nothing overflows and nothing is denormal. Over a slow link only
    /// a part of them: the rest is whatever the memory holds.
    static void fill(cuda::Device& device, cuda::Stream& compute, const cuda::DeviceBuffer& place,
                     std::chrono::steady_clock::time_point until) {
        constexpr std::size_t elements = std::size_t{1} << 16;
        constexpr auto pattern_bytes = elements * sizeof(float);
        const cuda::HostMapping memory(pattern_bytes);
        const auto page_locked = device.register_host(memory.data(), memory.size_bytes());
        auto* const pattern = reinterpret_cast<float*>(memory.data());
        for (std::size_t i = 0; i < elements; ++i)
            pattern[i] = (static_cast<float>((i * 2654435761U) >> 16 & 0xFFU) - 127.5F) * 1e-4F;
        for (std::size_t at = 0; at < place.size_bytes(); at += pattern_bytes) {
            compute.copy_to_device(place.data() + at, memory.data(),
                                   std::min(pattern_bytes, place.size_bytes() - at));
            compute.synchronize();
            if (std::chrono::steady_clock::now() > until)
                break;
        }
    }

    std::vector<cuda::DeviceBuffer> weights_;
    std::vector<cuda::DeviceBuffer> gradients_;
    std::size_t weight_uses_ = 0;
    std::size_t gradient_uses_ = 0;
};

/// What passes of one depth took.
struct PassSamples {
    std::vector<double> forward_s;
    std::vector<double> backward_s;

    /// As a run's steps, which meet a busy machine too: not the best.
    [[nodiscard]] PassTimes median() const {
        return {upper_median(forward_s), upper_median(backward_s)};
    }
};

/// Passes of a model whose values mean nothing, one after the other.
class TimedPasses {
  public:
    /// The first one meets cold memory: it is made here and not counted.
    TimedPasses(cuda::Device& device, cuda::Stream& compute, ComputePool& pool,
                const Gpt2Config& config, const BatchShape& shape, FewPlacesStream& parameters)
        : compute_(compute),
          parameters_(parameters),
          step_(device, compute, pool, config, shape),
          tokens_(std::size_t{shape.sequences} * (shape.sequence_tokens + std::size_t{1})) {
        for (std::size_t i = 0; i < tokens_.size(); ++i)
            tokens_[i] = static_cast<std::int32_t>(i * 31 % config.vocabulary);
        static_cast<void>(once());
    }

    [[nodiscard]] PassTimes once() {
        static_cast<void>(step_.train(parameters_, tokens_));
        compute_.synchronize();
        return step_.times();
    }

  private:
    cuda::Stream& compute_;
    FewPlacesStream& parameters_;
    Gpt2Step step_;
    std::vector<std::int32_t> tokens_;
};

double seconds_of(const PassTimes& times) {
    return times.forward_s + times.backward_s;
}

/// Adds the passes that fit in `while_s`, at least two.
void time_passes(TimedPasses& passes, double while_s, PassSamples& samples) {
    double sum = 0;
    for (int pass = 0; pass < 2 || sum < while_s; ++pass) {
        const auto times = passes.once();
        samples.forward_s.push_back(times.forward_s);
        samples.backward_s.push_back(times.backward_s);
        sum += seconds_of(times);
    }
}

/// Work through memory on as many threads as a pool has, beside whatever else runs.
class Company {
  public:
    Company(ComputePool& other, std::size_t memory_bytes)
        : pool_(other.threads(), other.isa()), arena_(memory_bytes) {
        constexpr double limit_s = 0.1;
        std::size_t moved_bytes = 0;
        const auto pass_s = median_pass_s(limit_s, 2, [&] {
            moved_bytes = 0;
            for (std::size_t turn = 0; turn < turns(); ++turn)
                moved_bytes += work_a_turn();
        });
        bytes_per_s_ = static_cast<double>(moved_bytes) / pass_s;
    }

    /// Works until `body` is done; returns the seconds of work, as it takes alone, done a second.
    template <class Body>
    [[nodiscard]] double work_while(const Body& body) {
        std::size_t moved_bytes = 0;
        const auto began = std::chrono::steady_clock::now();
        std::jthread worker([&](const std::stop_token& stop) {
            while (!stop.stop_requested())
                moved_bytes += work_a_turn();
        });
        body();
        worker.request_stop();
        worker.join();
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
        return static_cast<double>(moved_bytes) / bytes_per_s_ / taken.count();
    }

  private:
    /// So little that what is left to do when the other work ends does not count.
    static constexpr std::size_t most_turn_bytes = std::size_t{16} << 20;

    [[nodiscard]] std::size_t turn_bytes() const {
        return std::min(most_turn_bytes, arena_.bytes().size());
    }
    [[nodiscard]] std::size_t turns() const { return arena_.bytes().size() / turn_bytes(); }
    std::size_t work_a_turn() {
        return change_in_place(
            pool_, arena_.bytes().subspan(turn_++ % turns() * turn_bytes(), turn_bytes()));
    }

    ComputePool pool_;
    nvme::HugePageArena arena_;
    std::size_t turn_ = 0;
    double bytes_per_s_ = 0;
};

/// The inputs of the few layers that are timed, whatever becomes of the run's.
BatchShape with_all_on_the_device(BatchShape shape) {
    shape.input_places = 0;
    shape.lost_inputs = LostInputs::moved;
    return shape;
}

/// As many sequences as about a third of a second takes, at least one a thread.
std::uint32_t timed_sequences(const Gpt2Config& config, const BatchShape& shape,
                              std::size_t threads) {
    constexpr double operations_per_s_and_thread = 3e10;
    const double hidden = config.hidden;
    const double weights =
        2 * (4 * hidden * hidden + 2 * hidden * config.feed_forward) + hidden * config.vocabulary;
    const double one_s = 8 * weights * shape.sequence_tokens /
                         (operations_per_s_and_thread * static_cast<double>(threads));
    const auto most = shape.sequences / shape.micro_batches;
    const auto wanted = std::max(0.3 / one_s, static_cast<double>(threads));
    return static_cast<std::uint32_t>(std::clamp(wanted, 1.0, static_cast<double>(most)));
}

}  // namespace

double extrapolate_pass(double one_layer_s, double few_layers_s, std::uint32_t few_layers,
                        std::uint32_t layers, std::uint32_t timed_sequences,
                        std::uint32_t sequences) {
    if (layers == 0 || timed_sequences == 0)
        throw std::invalid_argument("a pass has at least one layer and one sequence");
    const double layer_s =
        few_layers > 1 ? std::max(0.0, few_layers_s - one_layer_s) / (few_layers - 1) : 0;
    return (one_layer_s + (layers - 1) * layer_s) * sequences / timed_sequences;
}

PassTimes calibrate_pass(cuda::Device& device, cuda::Stream& compute, ComputePool& pool,
                         const Gpt2Config& config, const BatchShape& shape,
                         std::size_t parameter_bytes) {
    auto timed = with_all_on_the_device(shape);
    // A GPU is timed with as much as it will be given: less would not fill it.
    timed.sequences = compute.kernels() != nullptr ? shape.sequences / shape.micro_batches
                                                   : timed_sequences(config, shape, pool.threads());
    timed.micro_batches = 1;
    FewPlacesStream parameters(device, compute, config, parameter_bytes);
    const auto time = [&](std::uint32_t layers, PassSamples& samples) {
        auto less = config;
        less.layers = layers;
        TimedPasses passes(device, compute, pool, less, timed, parameters);
        time_passes(passes, 0.25, samples);
    };
    PassSamples one;
    PassSamples few;
    time(1, one);
    // The more layers, the less of a disturbance is multiplied. A run has no room planned for more
    // than its own.
    constexpr double quick_s = 0.1;
    const auto first = one.median();
    const std::uint32_t wanted = first.forward_s + first.backward_s < quick_s ? 4 : 2;
    const auto places = shape.input_places == 0 ? config.layers : shape.input_places;
    const auto layers = std::min(wanted, places);
    // In turn: what slows the machine for a while slows both.
    time(layers, few);
    time(1, one);
    time(layers, few);
    const auto whole = [&](double one_s, double few_s) {
        return extrapolate_pass(one_s, few_s, layers, config.layers, timed.sequences,
                                shape.sequences);
    };
    return {.forward_s = whole(one.median().forward_s, few.median().forward_s),
            .backward_s = whole(one.median().backward_s, few.median().backward_s)};
}

double calibrate_sharing(cuda::Device& device, cuda::Stream& compute, ComputePool& pool,
                         const Gpt2Config& config, const BatchShape& shape,
                         std::size_t parameter_bytes, std::size_t memory_bytes) {
    constexpr double limit_s = 1;
    constexpr std::size_t least_turns = 5;
    constexpr double most = 4;  // what is measured while a busy machine does other things
    auto timed = with_all_on_the_device(shape);
    timed.sequences = timed_sequences(config, shape, pool.threads());
    timed.micro_batches = 1;
    auto less = config;
    less.layers = 1;
    FewPlacesStream parameters(device, compute, config, parameter_bytes);
    Company company(pool, memory_bytes);
    TimedPasses passes(device, compute, pool, less, timed, parameters);
    std::vector<double> factors;
    double sum = 0;
    // In turn, each beside its neighbours: what slows the machine for a while slows both.
    auto before_s = seconds_of(passes.once());
    while (factors.size() < least_turns || sum < limit_s) {
        double beside_s = 0;
        const auto share = company.work_while([&] { beside_s = seconds_of(passes.once()); });
        const auto after_s = seconds_of(passes.once());
        // Of each second beside it, `share` is work.
        const double added = beside_s - (before_s + after_s) / 2;
        factors.push_back(share > 0 ? added / (share * beside_s) : 1.0);
        sum += beside_s + after_s;
        before_s = after_s;
    }
    return std::clamp(median(factors), 1.0, most);
}

void warm_up(cuda::Device& device, cuda::Stream& compute, ComputePool& pool) {
    Gpt2Config config{.layers = 1, .hidden = 64, .heads = 1, .vocabulary = 256, .context = 32};
    resolve(config);
    const auto sequences = static_cast<std::uint32_t>(pool.threads());
    FewPlacesStream parameters(device, compute, config, 0);
    const TimedPasses once(device, compute, pool, config,
                           {.sequences = sequences, .sequence_tokens = 32}, parameters);
}

}  // namespace spillway::engine
