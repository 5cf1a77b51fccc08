// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/bench_adam_run.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <stdexcept>
#include <variant>

#include <fmt/format.h>
#include <unistd.h>

#include "cpu_optim/elementwise_reference.h"
#include "cpu_optim/float_formats.h"
#include "cpu_optim/split_master.h"
#include "engine/compute/compute_pool.h"

namespace spillway::engine {

namespace {

using cpu_optim::ElementwiseRun;
using cpu_optim::GradientType;

/// Of work for one thread: a MiB of an fp32 plane.
constexpr std::uint64_t block_elements = std::uint64_t{1} << 18;
/// Planes a large power of two apart compete for the same cache sets and DRAM banks, and an update
/// reads and writes them side by side: each is followed by whole pages, of no power of two.
constexpr std::uint64_t plane_gap_bytes = std::uint64_t{5} * 4096;

std::uint64_t plane_bytes(std::uint64_t elements, std::uint64_t element_bytes) {
    constexpr std::uint64_t page_bytes = 4096;
    return (elements * element_bytes + page_bytes - 1) / page_bytes * page_bytes + plane_gap_bytes;
}

/// Runs that the in-place pass goes through side by side, about as many as an update does: with one
/// alone a core does not keep enough of memory's channels busy.
constexpr std::uint64_t streams = 4;

std::uint64_t stream_elements(std::uint64_t elements) {
    return (elements + streams - 1) / streams;
}

/// splitmix64 of a plane's element.
std::uint64_t hash_of(std::uint64_t plane, std::uint64_t element) {
    std::uint64_t z = plane * 0xD1342543DE82EF95u + (element + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/// Sign and mantissa of `bits` with a power from 2^-9 to 2^-2: no value that takes another time.
template <int mantissa_bits, int bias>
std::uint32_t ordinary_bits(std::uint64_t hash, int all_bits) {
    const auto mantissa = static_cast<std::uint32_t>(hash) & ((1u << mantissa_bits) - 1u);
    const auto power = static_cast<std::uint32_t>(bias - 9 + static_cast<int>((hash >> 32) % 8));
    const auto sign = static_cast<std::uint32_t>(hash >> 63);
    return sign << (all_bits - 1) | power << mantissa_bits | mantissa;
}

float first_master(std::uint64_t element) {
    return std::bit_cast<float>(ordinary_bits<23, 127>(hash_of(1, element), 32));
}
std::uint32_t gradient_bits(GradientType type, std::uint64_t element) {
    const auto hash = hash_of(2, element);
    if (type == GradientType::fp32)
        return ordinary_bits<23, 127>(hash, 32);
    return type == GradientType::bf16 ? ordinary_bits<7, 127>(hash, 16)
                                      : ordinary_bits<10, 15>(hash, 16);
}
float gradient_value(GradientType type, std::uint64_t element) {
    const auto bits = gradient_bits(type, element);
    if (type == GradientType::fp32)
        return std::bit_cast<float>(bits);
    const auto half = static_cast<std::uint16_t>(bits);
    return type == GradientType::bf16 ? cpu_optim::from_bf16(half) : cpu_optim::from_fp16(half);
}

/// Every plane of the tensor, and the floats of the in-place pass.
class Planes {
  public:
    explicit Planes(const AdamBenchOptions& options)
        : options_(options), arena_(static_cast<std::size_t>(needed_bytes(options))) {
        for (std::size_t plane = 0; plane < cpu_optim::state_planes(options.hyper); ++plane)
            all_.state[plane] = cut<float>();
        all_.gradient_type = options.gradient;
        all_.gradient = options.gradient == GradientType::fp32
                            ? static_cast<const void*>(gradient32_ = cut<float>())
                            : static_cast<const void*>(gradient16_ = cut<std::uint16_t>());
        if (options.weights == MasterForm::fp32) {
            all_.master = cut<float>();
        } else {
            all_.weight = cut<std::uint16_t>();
            all_.residue = cut<std::int16_t>();
        }
        for (float*& stream : in_place_)
            stream = cut<float>(stream_elements(options.elements));
    }

    [[nodiscard]] std::uint64_t blocks() const {
        return (options_.elements + block_elements - 1) / block_elements;
    }
    [[nodiscard]] ElementwiseRun block(std::uint64_t number) const {
        return from(number * block_elements, block_of(number));
    }
    /// x += 1 over one block of each stream.
    void add_one(std::uint64_t number) const {
        constexpr std::uint64_t part = block_elements / streams;
        const auto first = number * part;
        add_one_to_rows(first, std::min(part, stream_elements(options_.elements) - first));
    }

    /// Weights and gradients; state starts at 0, which is what the arena holds.
    void fill(std::uint64_t number) const {
        const auto first = number * block_elements;
        for (auto i = first; i < first + block_of(number); ++i) {
            const float master = first_master(i);
            const auto halves = cpu_optim::split(master);
            if (all_.master != nullptr) {
                all_.master[i] = master;
            } else {
                all_.weight[i] = halves.hi;
                all_.residue[i] = halves.lo;
            }
            const auto bits = gradient_bits(options_.gradient, i);
            if (gradient32_ != nullptr)
                gradient32_[i] = std::bit_cast<float>(bits);
            else
                gradient16_[i] = static_cast<std::uint16_t>(bits);
        }
    }

    [[nodiscard]] cpu_optim::ElementwiseElement element(std::uint64_t i) const {
        cpu_optim::ElementwiseElement found;
        found.master = all_.master != nullptr ? all_.master[i]
                                              : cpu_optim::join({all_.weight[i], all_.residue[i]});
        for (std::size_t plane = 0; plane < cpu_optim::state_planes(options_.hyper); ++plane)
            found.state[plane] = all_.state[plane][i];
        return found;
    }
    [[nodiscard]] float in_place_value(std::uint64_t i) const {
        return in_place_[i % streams][i / streams];
    }
    [[nodiscard]] nvme::HugePages huge_pages() const { return arena_.huge_pages(); }

  private:
    template <typename T>
    T* cut(std::uint64_t elements) {
        auto* const plane = reinterpret_cast<T*>(arena_.bytes().data() + used_bytes_);
        used_bytes_ += plane_bytes(elements, sizeof(T));
        return plane;
    }
    template <typename T>
    T* cut() {
        return cut<T>(options_.elements);
    }
    /// Sixteen elements at a time, a count known to the compiler, so that it takes vectors of them.
    void add_one_to_rows(std::uint64_t first, std::uint64_t elements) const {
        constexpr std::uint64_t row = 16;
        std::uint64_t i = first;
        for (; i + row <= first + elements; i += row)
            for (float* const stream : in_place_)
                for (std::uint64_t j = 0; j < row; ++j)
                    stream[i + j] += 1.0F;
        for (; i < first + elements; ++i)
            for (float* const stream : in_place_)
                stream[i] += 1.0F;
    }
    [[nodiscard]] std::size_t block_of(std::uint64_t number) const {
        return static_cast<std::size_t>(
            std::min(block_elements, options_.elements - number * block_elements));
    }
    [[nodiscard]] ElementwiseRun from(std::uint64_t first, std::size_t elements) const {
        ElementwiseRun run = all_;
        run.elements = elements;
        const auto moved = [first](auto* plane) {
            return plane == nullptr ? plane : plane + first;
        };
        run.master = moved(run.master);
        run.weight = moved(run.weight);
        run.residue = moved(run.residue);
        for (auto& plane : run.state)
            plane = moved(plane);
        run.gradient = gradient32_ != nullptr ? static_cast<const void*>(gradient32_ + first)
                                              : static_cast<const void*>(gradient16_ + first);
        return run;
    }

    const AdamBenchOptions& options_;
    nvme::HugePageArena arena_;
    std::uint64_t used_bytes_ = 0;
    ElementwiseRun all_;
    float* gradient32_ = nullptr;
    std::uint16_t* gradient16_ = nullptr;
    std::array<float*, streams> in_place_{};
};

/// The passes, each over all blocks on all threads, and their number so far.
class Passes {
  public:
    Passes(const AdamBenchOptions& options, const Planes& planes)
        : options_(options), planes_(planes), pool_(options.threads, options.isa) {
        pool_.for_each(planes.blocks(), [&](std::size_t block) { planes.fill(block); });
    }

    double update_s() {
        const auto coefficients = cpu_optim::make_coefficients(options_.hyper, ++count_, 1.0);
        return seconds([&](std::size_t block) {
            if (cpu_optim::update_run(options_.isa, coefficients, planes_.block(block)) != 0)
                throw std::runtime_error(
                    fmt::format("block {} of the update has weights that are not finite", block));
        });
    }
    double in_place_s() {
        return seconds([&](std::size_t block) { planes_.add_one(block); });
    }
    [[nodiscard]] std::uint64_t count() const { return count_; }

  private:
    template <class Body>
    double seconds(const Body& body) {
        const auto began = std::chrono::steady_clock::now();
        pool_.for_each(planes_.blocks(), body);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    }

    const AdamBenchOptions& options_;
    const Planes& planes_;
    ComputePool pool_;
    std::uint64_t count_ = 0;
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const auto middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// All bits of a sample, spread over all blocks, from its first value through every update.
std::uint64_t verify(const AdamBenchOptions& options, const Planes& planes, std::uint64_t updates) {
    constexpr std::uint64_t most_samples = 20'000;
    std::vector<cpu_optim::ElementwiseCoefficients> steps;
    for (std::uint64_t step = 1; step <= updates; ++step)
        steps.push_back(cpu_optim::make_coefficients(options.hyper, step, 1.0));
    const auto bits = [](const cpu_optim::ElementwiseElement& element) {
        return std::bit_cast<std::array<std::uint32_t, 1 + cpu_optim::most_state_planes>>(element);
    };
    const auto samples = std::min(most_samples, options.elements);
    for (std::uint64_t n = 0; n < samples; ++n) {
        const auto i = n * options.elements / samples;
        cpu_optim::ElementwiseElement expected{first_master(i), {}};
        const float gradient = gradient_value(options.gradient, i);
        for (const auto& step : steps)
            expected = std::visit(
                [&](const auto& rule) { return updated(rule, expected, gradient); }, step.rule);
        if (bits(planes.element(i)) != bits(expected))
            throw std::runtime_error(fmt::format(
                "element {}: the weight is {} after {} updates, and {} by the scalar reference", i,
                planes.element(i).master, updates, expected.master));
        if (planes.in_place_value(i) != static_cast<float>(updates))
            throw std::runtime_error(fmt::format("element {} of the in-place pass is {}, not {}", i,
                                                 planes.in_place_value(i), updates));
    }
    return samples;
}

std::vector<std::string> notes_of(const AdamBenchOptions& options, const Planes& planes) {
    std::vector<std::string> notes;
    const auto cache_bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
    const auto all_bytes = needed_bytes(options);
    if (cache_bytes > 0 && all_bytes < 4 * static_cast<std::uint64_t>(cache_bytes))
        notes.push_back(
            fmt::format("{} elements take {} bytes, of which the cache of {} bytes "
                        "holds a part: memory may be slower",
                        options.elements, all_bytes, cache_bytes));
    if (planes.huge_pages() == nvme::HugePages::refused)
        notes.emplace_back("the kernel gave no huge pages: an update may take longer");
    return notes;
}

void note_pairs(std::uint64_t elements, const std::vector<std::array<double, 2>>& pairs,
                AdamBenchResult& result) {
    std::vector<double> update_s, in_place_s, attained;
    const auto update_bytes = static_cast<double>(elements * result.bytes_per_parameter);
    const auto in_place_bytes =
        static_cast<double>(streams * stream_elements(elements) * 2 * sizeof(float));
    for (const auto& [update, in_place] : pairs) {
        update_s.push_back(update);
        in_place_s.push_back(in_place);
        attained.push_back(update_bytes / update / (in_place_bytes / in_place));
    }
    result.update_s = median(update_s);
    result.parameters_per_s = static_cast<double>(elements) / result.update_s;
    result.bytes_per_s = update_bytes / result.update_s;
    result.dram_bytes_per_s = in_place_bytes / median(in_place_s);
    result.attained = median(attained);
    result.least_attained = *std::min_element(attained.begin(), attained.end());
    result.most_attained = *std::max_element(attained.begin(), attained.end());
}

}  // namespace

std::uint64_t moved_bytes_per_parameter(const AdamBenchOptions& options) {
    constexpr std::uint64_t master_bytes = 4;  // in one plane or in two halves
    const auto updated_bytes =
        master_bytes + cpu_optim::state_planes(options.hyper) * sizeof(float);
    return 2 * updated_bytes + cpu_optim::gradient_bytes(options.gradient);
}

std::uint64_t needed_bytes(const AdamBenchOptions& options) {
    constexpr std::uint64_t most_elements = std::uint64_t{1} << 44;
    if (options.elements == 0 || options.elements > most_elements)
        throw std::invalid_argument(fmt::format("{} elements were asked for: choose 1 to {}",
                                                options.elements, most_elements));
    const auto bytes = [&](std::uint64_t element_bytes) {
        return plane_bytes(options.elements, element_bytes);
    };
    const auto master = options.weights == MasterForm::fp32 ? bytes(4) : 2 * bytes(2);
    const auto in_place = streams * plane_bytes(stream_elements(options.elements), sizeof(float));
    const auto needed = cpu_optim::state_planes(options.hyper) * bytes(sizeof(float)) + master +
                        bytes(cpu_optim::gradient_bytes(options.gradient)) + in_place;
    constexpr auto page_bytes = nvme::HugePageArena::page_bytes;
    return (needed + page_bytes - 1) / page_bytes * page_bytes;
}

AdamBenchResult run_adam_bench(const AdamBenchOptions& options) {
    if (options.pairs == 0)
        throw std::invalid_argument("0 pairs of passes were asked for: choose 1 or more");
    const Planes planes(options);
    Passes passes(options, planes);
    AdamBenchResult result{.bytes_per_parameter = moved_bytes_per_parameter(options),
                           .huge_pages = planes.huge_pages(),
                           .notes = notes_of(options, planes)};
    static_cast<void>(passes.update_s());
    static_cast<void>(passes.in_place_s());
    std::vector<std::array<double, 2>> pairs;
    while (pairs.size() < options.pairs && !options.stop()) {
        const double update_s = passes.update_s();
        pairs.push_back({update_s, passes.in_place_s()});
    }
    result.interrupted = pairs.size() < options.pairs;
    if (result.interrupted)
        return result;
    note_pairs(options.elements, pairs, result);
    result.verified_elements = verify(options, planes, passes.count());
    return result;
}

}  // namespace spillway::engine
