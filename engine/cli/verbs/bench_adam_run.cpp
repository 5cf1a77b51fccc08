// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/bench_adam_run.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/cli/verbs/bench_adam_tensor.h"
#include "engine/compute/compute_pool.h"
#include "engine/measure/median.h"

namespace spillway::engine {

namespace {

/// Of work for one thread: a MiB of an fp32 plane.
constexpr std::uint64_t block_elements = std::uint64_t{1} << 18;
/// As the planes of the tensor, the streams of the in-place pass are no power of two apart.
constexpr std::uint64_t stream_gap_bytes = std::uint64_t{5} * 4096;

/// Runs that the in-place pass goes through side by side, about as many as an update does: with one
/// alone a core does not keep enough of memory's channels busy.
constexpr std::uint64_t streams = 4;

std::uint64_t stream_elements(std::uint64_t elements) {
    return (elements + streams - 1) / streams;
}

std::uint64_t stream_bytes(std::uint64_t elements) {
    constexpr std::uint64_t page_bytes = 4096;
    return (stream_elements(elements) * sizeof(float) + page_bytes - 1) / page_bytes * page_bytes +
           stream_gap_bytes;
}

/// Whether a pass asks for memory before it comes there. Which is faster depends on the processor.
enum class Prefetch { none, ahead };

/// The floats of the in-place and the reading pass.
class InPlaceStreams {
  public:
    explicit InPlaceStreams(std::uint64_t elements)
        : elements_(elements), arena_(static_cast<std::size_t>(streams * stream_bytes(elements))) {
        for (std::uint64_t stream = 0; stream < streams; ++stream)
            floats_[stream] =
                reinterpret_cast<float*>(arena_.bytes().data() + stream * stream_bytes(elements));
    }

    /// x += 1 over one block of each stream.
    void add_one(std::uint64_t block, Prefetch prefetch) const {
        if (prefetch == Prefetch::ahead)
            add_one_to_rows<bytes_ahead>(first_of(block), elements_of(block));
        else
            add_one_to_rows<0>(first_of(block), elements_of(block));
    }
    /// Reads one block of each stream; returns all bits that are set in any of it.
    [[nodiscard]] std::uint64_t bits_of(std::uint64_t block, Prefetch prefetch) const {
        std::uint64_t bits = 0;
        for (const float* const stream : floats_)
            bits |= prefetch == Prefetch::ahead
                        ? bits_of_row<bytes_ahead>(stream + first_of(block), elements_of(block))
                        : bits_of_row<0>(stream + first_of(block), elements_of(block));
        return bits;
    }
    [[nodiscard]] float value(std::uint64_t i) const { return floats_[i % streams][i / streams]; }

  private:
    static constexpr std::uint64_t part = block_elements / streams;
    static constexpr std::size_t bytes_ahead = 4096;

    [[nodiscard]] static std::uint64_t first_of(std::uint64_t block) { return block * part; }
    [[nodiscard]] std::uint64_t elements_of(std::uint64_t block) const {
        return std::min(part, stream_elements(elements_) - first_of(block));
    }
    /// Asks for what lies `ahead_bytes` after element `i`, or for the last before `end`.
    template <std::size_t ahead_bytes>
    static void ask_for(const float* floats, std::uint64_t i, std::uint64_t end) {
        if constexpr (ahead_bytes > 0)
            __builtin_prefetch(floats + std::min(i + ahead_bytes / sizeof(float), end - 1));
    }
    /// 64 bytes at a time; nothing depends on what is left over.
    template <std::size_t ahead_bytes>
    static std::uint64_t bits_of_row(const float* floats, std::uint64_t elements) {
        constexpr std::uint64_t row = 16;
        const auto two_at = [floats](std::uint64_t i) {
            std::uint64_t bits = 0;
            std::memcpy(&bits, floats + i, sizeof(bits));
            return bits;
        };
        std::uint64_t first = 0, second = 0, third = 0, fourth = 0;
        for (std::uint64_t i = 0; i + row <= elements; i += row) {
            ask_for<ahead_bytes>(floats, i, elements);
            first |= two_at(i) | two_at(i + 8);
            second |= two_at(i + 2) | two_at(i + 10);
            third |= two_at(i + 4) | two_at(i + 12);
            fourth |= two_at(i + 6) | two_at(i + 14);
        }
        return first | second | third | fourth;
    }
    /// Sixteen elements at a time, a count known to the compiler, so that it takes vectors of them.
    template <std::size_t ahead_bytes>
    void add_one_to_rows(std::uint64_t first, std::uint64_t elements) const {
        constexpr std::uint64_t row = 16;
        std::uint64_t i = first;
        for (; i + row <= first + elements; i += row)
            for (float* const stream : floats_) {
                ask_for<ahead_bytes>(stream, i, first + elements);
                for (std::uint64_t j = 0; j < row; ++j)
                    stream[i + j] += 1.0F;
            }
        for (; i < first + elements; ++i)
            for (float* const stream : floats_)
                stream[i] += 1.0F;
    }

    std::uint64_t elements_;
    nvme::HugePageArena arena_;
    std::array<float*, streams> floats_{};
};

/// Seconds of one pass of each kind.
struct PassTimes {
    double update_s = 0;
    double in_place_s = 0;
    double scan_s = 0;
    double read_s = 0;
};

/// The passes, each over all blocks on all threads, and their number so far.
class Passes {
  public:
    explicit Passes(const AdamBenchOptions& options)
        : options_(options),
          tensor_(options, 0, options.elements),
          in_place_(options.elements),
          pool_(options.threads, options.isa),
          scans_(blocks()),
          read_bits_(blocks()) {
        for_each_block([&](std::uint64_t, std::uint64_t begin, std::uint64_t count) {
            tensor_.fill(begin, count);
        });
    }

    /// One after the other, so that all meet the same machine.
    PassTimes all() {
        PassTimes times{.update_s = update_s()};
        times.in_place_s = std::min(in_place_s(Prefetch::none), in_place_s(Prefetch::ahead));
        times.scan_s = scan_s();
        times.read_s = std::min(read_s(Prefetch::none), read_s(Prefetch::ahead));
        return times;
    }
    /// Of each update so far.
    [[nodiscard]] const std::vector<UpdateRule>& rules() const { return rules_; }
    /// To each float of the in-place pass.
    [[nodiscard]] std::uint64_t ones_added() const { return ones_added_; }
    [[nodiscard]] const AdamBenchTensor& tensor() const { return tensor_; }
    [[nodiscard]] const InPlaceStreams& in_place() const { return in_place_; }
    /// Of the gradient's first block, in the last pass.
    [[nodiscard]] const cpu_optim::GradientScan& first_scan() const { return scans_.front(); }

  private:
    double update_s() {
        double measuring_s = 0;
        const auto step = rules_.size() + 1;
        rules_.push_back(options_.hyper.visit([&](const auto& groups) -> UpdateRule {
            const auto& hyper = groups.front();
            const auto coefficients = cpu_optim::make_coefficients(hyper, step, 1.0);
            if constexpr (std::is_same_v<decltype(coefficients),
                                         const cpu_optim::AdafactorCoefficients>) {
                throw std::invalid_argument("updates of Adafactor are not measured here");
            } else if constexpr (std::is_same_v<decltype(coefficients),
                                                const cpu_optim::LayerwiseCoefficients>) {
                measuring_s = measure_s(coefficients);
                return cpu_optim::with_step(coefficients, cpu_optim::layer_step(hyper, sums()));
            } else {
                return coefficients;
            }
        }));
        return measuring_s +
               seconds([&](std::uint64_t block, std::uint64_t begin, std::uint64_t count) {
                   if (tensor_.update(options_.isa, rules_.back(), step, begin, count) != 0)
                       throw std::runtime_error(fmt::format(
                           "block {} of the update has weights that are not finite", block));
               });
    }
    double measure_s(const cpu_optim::LayerwiseCoefficients& coefficients) {
        measures_.resize(blocks());
        return seconds([&](std::uint64_t block, std::uint64_t begin, std::uint64_t count) {
            measures_[block] = tensor_.measure(options_.isa, coefficients, begin, count);
        });
    }
    [[nodiscard]] cpu_optim::LayerSums sums() const {
        cpu_optim::LayerSums all;
        for (const auto& measure : measures_)
            all += measure;
        return all;
    }
    double in_place_s(Prefetch prefetch) {
        ++ones_added_;
        return seconds([&](std::uint64_t block, std::uint64_t, std::uint64_t) {
            in_place_.add_one(block, prefetch);
        });
    }
    double scan_s() {
        return seconds([&](std::uint64_t block, std::uint64_t begin, std::uint64_t count) {
            scans_[block] = tensor_.scan(options_.isa, begin, count);
        });
    }
    double read_s(Prefetch prefetch) {
        return seconds([&](std::uint64_t block, std::uint64_t, std::uint64_t) {
            read_bits_[block] = in_place_.bits_of(block, prefetch);
        });
    }
    [[nodiscard]] std::uint64_t blocks() const {
        return (options_.elements + block_elements - 1) / block_elements;
    }
    template <class Body>
    void for_each_block(const Body& body) {
        const auto elements = options_.elements;
        pool_.for_each(blocks(), [&](std::size_t block) {
            const auto begin = block * block_elements;
            body(block, begin, std::min(block_elements, elements - begin));
        });
    }
    template <class Body>
    double seconds(const Body& body) {
        const auto began = std::chrono::steady_clock::now();
        for_each_block(body);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    }

    const AdamBenchOptions& options_;
    AdamBenchTensor tensor_;
    InPlaceStreams in_place_;
    ComputePool pool_;
    std::vector<cpu_optim::GradientScan> scans_;
    std::vector<std::uint64_t> read_bits_;  ///< kept, or the compiler would leave the pass out
    std::vector<cpu_optim::LayerSums> measures_;  ///< of pass 1, by block
    std::vector<UpdateRule> rules_;
    std::uint64_t ones_added_ = 0;
};

/// Whether pass 1 finds in both what the scalar reference does.
bool measures_alike(const AdamBenchOptions& options, const Passes& passes,
                    const AdamBenchTensor& expected, std::uint64_t first, std::uint64_t count) {
    return options.hyper.visit([&](const auto& groups) {
        const auto next =
            cpu_optim::make_coefficients(groups.front(), passes.rules().size() + 1, 1.0);
        if constexpr (std::is_same_v<decltype(next), const cpu_optim::LayerwiseCoefficients>) {
            const auto found = passes.tensor().measure(options.isa, next, first, count);
            const auto wanted = expected.measure(cpu_optim::Isa::scalar, next, 0, count);
            return found.weight_squares == wanted.weight_squares &&
                   found.direction_squares == wanted.direction_squares;
        } else {
            return true;
        }
    });
}

/// All bits of a sample of steps, spread over the tensor, from the first value through every
/// update.
std::uint64_t verify(const AdamBenchOptions& options, const Passes& passes) {
    constexpr std::uint64_t most_samples = 79;  // 20,000 elements or so
    const auto all = (options.elements + bench_step_elements - 1) / bench_step_elements;
    const auto samples = std::min(most_samples, all);
    const auto updates = passes.rules().size();
    std::uint64_t verified = 0;
    for (std::uint64_t n = 0; n < samples; ++n) {
        const auto first = bench_step_elements * (samples == 1 ? 0 : n * (all - 1) / (samples - 1));
        const auto count = std::min(bench_step_elements, options.elements - first);
        const AdamBenchTensor expected(options, first, count);
        expected.fill(0, count);
        for (std::uint64_t step = 1; step <= updates; ++step)
            static_cast<void>(
                expected.update(cpu_optim::Isa::scalar, passes.rules()[step - 1], step, 0, count));
        if (!passes.tensor().agrees_with(expected) ||
            !measures_alike(options, passes, expected, first, count))
            throw std::runtime_error(fmt::format(
                "elements {} to {}: weights, state or norms after {} updates are not those "
                "of the scalar reference",
                first, first + count, updates));
        if (passes.in_place().value(first + n % count) != static_cast<float>(passes.ones_added()))
            throw std::runtime_error(fmt::format("element {} of the in-place pass is {}, not {}",
                                                 first, passes.in_place().value(first + n % count),
                                                 passes.ones_added()));
        verified += count;
    }
    const auto counted = std::min(block_elements, options.elements);
    const auto scan = passes.tensor().scan(cpu_optim::Isa::scalar, 0, counted);
    if (scan.sum_of_squares != passes.first_scan().sum_of_squares ||
        scan.nonfinite != passes.first_scan().nonfinite)
        throw std::runtime_error(fmt::format(
            "the scan of the first {} gradients is not that of the scalar reference", counted));
    return verified;
}

std::vector<std::string> notes_of(const AdamBenchOptions& options, nvme::HugePages huge_pages) {
    std::vector<std::string> notes;
    const auto cache_bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
    const auto all_bytes = needed_bytes(options);
    if (cache_bytes > 0 && all_bytes < 4 * static_cast<std::uint64_t>(cache_bytes))
        notes.push_back(
            fmt::format("{} elements take {} bytes, of which the cache of {} bytes "
                        "holds a part: memory may be slower",
                        options.elements, all_bytes, cache_bytes));
    if (huge_pages == nvme::HugePages::refused)
        notes.emplace_back("the kernel gave no huge pages: an update may take longer");
    return notes;
}

void note_pairs(const AdamBenchOptions& options, const std::vector<PassTimes>& pairs,
                AdamBenchResult& result) {
    const auto elements = static_cast<double>(options.elements);
    const auto update_bytes = elements * result.bytes_per_parameter;
    const auto scan_bytes =
        elements * static_cast<double>(cpu_optim::gradient_bytes(options.gradient));
    const auto read_bytes =
        static_cast<double>(streams * stream_elements(options.elements) * sizeof(float));
    std::vector<double> update_s, in_place_s, scan_s, read_s, attained, scan_attained;
    for (const auto& times : pairs) {
        update_s.push_back(times.update_s);
        in_place_s.push_back(times.in_place_s);
        scan_s.push_back(times.scan_s);
        read_s.push_back(times.read_s);
        attained.push_back(update_bytes / times.update_s / (2 * read_bytes / times.in_place_s));
        scan_attained.push_back(scan_bytes / times.scan_s / (read_bytes / times.read_s));
    }
    result.update_s = median(update_s);
    result.parameters_per_s = elements / result.update_s;
    result.bytes_per_s = update_bytes / result.update_s;
    result.dram_bytes_per_s = 2 * read_bytes / median(in_place_s);
    result.attained = median(attained);
    result.least_attained = *std::min_element(attained.begin(), attained.end());
    result.most_attained = *std::max_element(attained.begin(), attained.end());
    result.scan_bytes_per_s = scan_bytes / median(scan_s);
    result.read_bytes_per_s = read_bytes / median(read_s);
    result.scan_attained = median(scan_attained);
}

}  // namespace

std::uint64_t needed_bytes(const AdamBenchOptions& options) {
    constexpr std::uint64_t most_elements = std::uint64_t{1} << 44;
    if (options.elements == 0 || options.elements > most_elements)
        throw std::invalid_argument(fmt::format("{} elements were asked for: choose 1 to {}",
                                                options.elements, most_elements));
    constexpr auto page_bytes = nvme::HugePageArena::page_bytes;
    const auto whole = [](std::uint64_t bytes) {
        return (bytes + page_bytes - 1) / page_bytes * page_bytes;
    };
    return whole(AdamBenchTensor::needed_bytes(options, options.elements)) +
           whole(streams * stream_bytes(options.elements));
}

AdamBenchResult run_adam_bench(const AdamBenchOptions& options) {
    if (options.pairs == 0)
        throw std::invalid_argument("0 pairs of passes were asked for: choose 1 or more");
    options.hyper.check(options.state);
    static_cast<void>(needed_bytes(options));
    Passes passes(options);
    AdamBenchResult result{
        .bytes_per_parameter = AdamBenchTensor::moved_bytes_per_parameter(options),
        .huge_pages = passes.tensor().huge_pages(),
        .notes = notes_of(options, passes.tensor().huge_pages())};
    static_cast<void>(passes.all());
    std::vector<PassTimes> pairs;
    while (pairs.size() < options.pairs && !options.stop())
        pairs.push_back(passes.all());
    result.interrupted = pairs.size() < options.pairs;
    if (result.interrupted)
        return result;
    note_pairs(options, pairs, result);
    result.verified_elements = verify(options, passes);
    return result;
}

}  // namespace spillway::engine
