// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/tuning_bench.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "cpu_optim/isa.h"
#include "engine/compute/product.h"
#include "engine/measure/update_model.h"
#include "engine/settings/optimizer_choice.h"
#include "offload/plan.h"
#include "offload/scratch_weights.h"
#include "offload/tensor_optimizer.h"

namespace spillway::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto tensor_elements = UpdateModel::tensor_elements;
constexpr std::size_t weight_bytes = 2;
/// What the memory manager's objects take that no ledger counts, and arenas that are rounded up.
constexpr std::size_t beside_bytes = std::size_t{8} << 20;

/// All tensors share one tensor's gradients.
std::size_t model_bytes(std::uint64_t elements) {
    return UpdateModel::memory_bytes(elements, tensor_elements);
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Matrix products, as passes make them, on the run's threads.
class Computation {
  public:
    explicit Computation(ComputePool& pool) : pool_(pool), input_(side * side, 0.5F) {
        weight_ = input_;
        result_ = input_;
    }
    static constexpr std::size_t memory_bytes = std::size_t{3} * 512 * 512 * sizeof(float);

    /// Chooses how many products take about `seconds`.
    void fit(double seconds) {
        products_ = 1;
        run();
        constexpr std::size_t timed = 8;
        products_ = timed;
        const auto start = Clock::now();
        run();
        const auto each_s = std::max(seconds_since(start) / timed, 1e-6);
        products_ = static_cast<std::size_t>(std::clamp(seconds / each_s, 1.0, 1e5));
    }
    void run() {
        for (std::size_t i = 0; i < products_; ++i)
            product(pool_, {.sequences = 1, .sequence_tokens = side}, input_.data(), weight_.data(),
                    {.outputs = side, .inputs = side}, result_.data());
    }

  private:
    static constexpr std::size_t side = 512;
    ComputePool& pool_;
    std::vector<float> input_, weight_, result_;
    std::size_t products_ = 1;
};

}  // namespace

class TuningBench::Impl {
  public:
    Impl(const TuningBenchRequest& request, const Tuning& defaults)
        : request_(request), defaults_(defaults) {
        constexpr std::uint64_t first_elements = std::uint64_t{4} << 20;
        const auto most = most_elements();
        auto elements = std::min(first_elements, most);
        const auto largest_first = std::min(16 * first_elements, most);
        for (const bool last : {false, true}) {
            // Of a state that is no larger than what it passes through, all would rest in memory.
            for (;; elements = std::min(2 * elements, largest_first)) {
                made_.clear();
                model_.emplace(elements, tensor_elements);
                possible_ = most != 0 && make(defaults_) != nullptr;
                if (possible_ || elements >= largest_first)
                    break;
            }
            if (!possible_)
                return;
            default_s_ = timed_step(made_.front());
            if (last || default_s_ >= request_.step_s || elements == most)
                break;
            const auto wanted = static_cast<double>(elements) * request_.step_s / default_s_;
            elements = static_cast<std::uint64_t>(std::min(wanted, static_cast<double>(most)));
        }
        if (request_.passes != nullptr) {
            computation_.emplace(*request_.passes);
            computation_->fit(default_s_);
        }
    }

    [[nodiscard]] bool is_possible() const noexcept { return possible_; }
    [[nodiscard]] std::uint64_t elements() const noexcept { return model_->elements(); }
    [[nodiscard]] bool can_fetch(const Tuning& tuning) const {
        try {
            const auto kind = request_.device->memory_kind();
            return offload::ScratchWeights::needed_host_bytes(weights_options(tuning), kind) +
                       offload::ScratchWeights::needed_host_bytes(weights_options(defaults_),
                                                                  kind) <=
                   room_bytes();
        } catch (const std::invalid_argument&) {  // too few to pass through such chunks
            return false;
        }
    }
    [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_bytes_; }

    void forget() {
        made_.clear();
        made_weights_.clear();
    }

    std::optional<double> step_s(const Tuning& tuning, TuningScene scene) {
        if (scene == TuningScene::weights)
            return weights_s(tuning);
        made_weights_.clear();
        auto* const made = find_or_make(tuning);
        if (made == nullptr)
            return std::nullopt;
        if (scene == TuningScene::beside_passes && !computation_)
            return std::nullopt;
        const auto start = Clock::now();
        begin_step(*made);
        if (scene == TuningScene::beside_passes)
            computation_->run();
        made->optimizer->wait();
        return seconds_since(start);
    }

  private:
    struct Made {
        Tuning tuning;
        std::unique_ptr<offload::TensorOptimizer> optimizer;
        std::size_t host_bytes = 0;
    };
    struct MadeWeights {
        Tuning tuning;
        std::unique_ptr<offload::ScratchWeights> weights;
        std::size_t host_bytes = 0;
    };
    /// Of either: pairs are stepped in turn.
    static constexpr std::size_t most_kept = 2;

    /// With which the defaults fit twice beside the model, so that pairs can be stepped in turn.
    [[nodiscard]] std::uint64_t most_elements() {
        const auto needed = needed_bytes(untouched_model(), defaults_);
        const auto fixed =
            2 * needed + model_bytes(tensor_elements) + beside_bytes + Computation::memory_bytes;
        if (fixed >= request_.memory_bytes)
            return 0;
        const auto most = (request_.memory_bytes - fixed) / weight_bytes;
        constexpr std::uint64_t many = std::uint64_t{256} << 20;
        // Whole tensors: no more than fit.
        return std::min({most - most % tensor_elements, many, request_.parameters});
    }

    /// As many elements as any bench has, none of which is there: planning looks at no value.
    static std::vector<offload::Parameter> untouched_model() {
        static std::uint16_t nothing;
        std::vector<offload::Parameter> all;
        for (std::size_t tensor = 0; tensor < 256; ++tensor)
            all.push_back({.name = fmt::format("{}", tensor),
                           .shape = {tensor_elements},
                           .type = offload::ParameterType::bf16,
                           .data = &nothing});
        return all;
    }

    [[nodiscard]] offload::TensorOptimizerOptions options_of(const Tuning& tuning) const {
        const auto& settings = request_.settings;
        offload::TensorOptimizerOptions options;
        const auto folders = nvme_folders(settings.nvme);
        options.nvme = folders.front();
        options.more_nvme.assign(folders.begin() + 1, folders.end());
        options.state = cpu_optim::parse_state_format(settings.state);
        options.chunk_bytes = tuning.chunk_bytes;
        options.windows = windows_of(tuning);
        options.threads = update_threads_of(tuning, settings.threads);
        options.isa = cpu_optim::parse_isa(settings.isa);
        options.io.drives = drives_by(tuning);
        return options;
    }
    [[nodiscard]] std::vector<offload::DriveIo> drives_by(const Tuning& tuning) const {
        std::vector<offload::DriveIo> all;
        for (const auto& io : request_.drive_io)
            all.push_back(drive_io_of(tuning, io));
        return all;
    }
    /// Thousands of steps on one gradient: larger ones might not end in numbers.
    [[nodiscard]] offload::HyperGroups groups() const {
        constexpr double most_lr = 1e-6;
        return hyper_groups(request_.settings, std::min(request_.settings.lr, most_lr));
    }

    /// With nothing of the state in memory but what passes through.
    [[nodiscard]] std::size_t needed_bytes(const std::vector<offload::Parameter>& parameters,
                                           const Tuning& tuning) const {
        auto options = options_of(tuning);
        options.host_bytes = 1;
        try {
            offload::TensorOptimizer::check_room(parameters, groups(), options);
        } catch (const offload::PlanRefused& refused) {
            return refused.needed_bytes;
        }
        return options.host_bytes;
    }

    Made* find_or_make(const Tuning& tuning) {
        return move_to_front(made_, tuning) ? &made_.front() : make(tuning);
    }

    template <typename Kept>
    static bool move_to_front(std::deque<Kept>& kept, const Tuning& tuning) {
        const auto found = std::ranges::find(kept, tuning, &Kept::tuning);
        if (found == kept.end())
            return false;
        std::rotate(kept.begin(), found, found + 1);
        return true;
    }

    std::optional<double> weights_s(const Tuning& tuning) {
        if (request_.device == nullptr)
            return std::nullopt;
        made_.clear();
        if (!move_to_front(made_weights_, tuning) && !make_weights(tuning))
            return std::nullopt;
        const auto start = Clock::now();
        made_weights_.front().weights->pass();
        return seconds_since(start);
    }

    /// False: they do not fit.
    bool make_weights(const Tuning& tuning) {
        const auto options = weights_options(tuning);
        std::size_t needed = 0;
        try {
            needed =
                offload::ScratchWeights::needed_host_bytes(options, request_.device->memory_kind());
        } catch (const std::invalid_argument&) {  // too few to pass through such chunks
            return false;
        }
        if (made_weights_.size() == most_kept)
            made_weights_.pop_back();
        if (taken_bytes(made_weights_) + needed > room_bytes() ||
            (made_weights_.size() + 1) * offload::ScratchWeights::needed_device_bytes() >
                request_.device_bytes)
            return false;
        MadeWeights made{.tuning = tuning, .weights = nullptr, .host_bytes = needed};
        try {
            made.weights = std::make_unique<offload::ScratchWeights>(options, *request_.device,
                                                                     *request_.compute);
        } catch (const offload::PlanRefused&) {  // the drive is full
            return false;
        }
        made_weights_.push_front(std::move(made));
        note_peak(taken_bytes(made_weights_));
        made_weights_.front().weights->pass();
        return true;
    }

    [[nodiscard]] offload::ScratchWeightsOptions weights_options(const Tuning& tuning) const {
        const auto& settings = request_.settings;
        // A step moves some 20 bytes of each parameter, a pass 4: both are to take as long.
        constexpr std::uint64_t as_long = 4;
        offload::ScratchWeightsOptions options{
            .nvme = nvme_folders(settings.nvme),
            .elements = std::min(as_long * model_->elements(), request_.parameters),
            .chunk_bytes = tuning.chunk_bytes,
            .windows = windows_of(tuning),
            .threads = settings.threads,
            .isa = cpu_optim::parse_isa(settings.isa)};
        options.io.drives = drives_by(tuning);
        return options;
    }

    /// Null: it does not fit, or nothing of it would be on a drive.
    Made* make(const Tuning& tuning) {
        auto parameters = model_->parameters();
        const auto needed = needed_bytes(parameters, tuning);
        if (made_.size() == most_kept)
            made_.pop_back();
        if (taken_bytes(made_) + needed > room_bytes())
            return nullptr;
        auto options = options_of(tuning);
        options.host_bytes = needed;
        Made made{.tuning = tuning, .optimizer = nullptr, .host_bytes = needed};
        try {
            made.optimizer = std::make_unique<offload::TensorOptimizer>(std::move(parameters),
                                                                        groups(), options);
        } catch (const offload::PlanRefused&) {  // the drive is full
            return nullptr;
        }
        if (made.optimizer->statistics().resident_state_bytes != 0)
            return nullptr;
        made_.push_front(std::move(made));
        note_peak(taken_bytes(made_));
        static_cast<void>(timed_step(made_.front()));  // the first write to new room is slower
        return &made_.front();
    }

    template <typename Kept>
    [[nodiscard]] static std::size_t taken_bytes(const std::deque<Kept>& kept) {
        std::size_t sum = 0;
        for (const auto& one : kept)
            sum += one.host_bytes;
        return sum;
    }
    void note_peak(std::size_t taken_bytes) {
        peak_bytes_ = std::max(peak_bytes_, request_.memory_bytes - room_bytes() + taken_bytes);
    }
    /// For optimizers.
    [[nodiscard]] std::size_t room_bytes() const {
        return request_.memory_bytes -
               std::min(request_.memory_bytes,
                        model_bytes(model_->elements()) + beside_bytes + Computation::memory_bytes);
    }

    void begin_step(Made& made) {
        const auto tensors = made.optimizer->parameters().size();
        for (offload::TensorId tensor = 0; tensor < tensors; ++tensor)
            made.optimizer->give_gradient(tensor, model_->gradient(tensor));
        static_cast<void>(made.optimizer->begin_step({}));
    }
    double timed_step(Made& made) {
        const auto start = Clock::now();
        begin_step(made);
        made.optimizer->wait();
        return seconds_since(start);
    }

    TuningBenchRequest request_;
    Tuning defaults_;
    std::optional<UpdateModel> model_;
    std::optional<Computation> computation_;
    /// Those asked for last first; one of the two is empty.
    std::deque<Made> made_;
    std::deque<MadeWeights> made_weights_;
    bool possible_ = false;
    double default_s_ = 0;
    std::size_t peak_bytes_ = 0;
};

TuningBench::TuningBench(const TuningBenchRequest& request, const Tuning& defaults)
    : impl_(std::make_unique<Impl>(request, defaults)) {}
TuningBench::~TuningBench() = default;

bool TuningBench::is_possible() const noexcept {
    return impl_->is_possible();
}
bool TuningBench::can_fetch(const Tuning& tuning) const {
    return impl_->can_fetch(tuning);
}
std::optional<double> TuningBench::step_s(const Tuning& tuning, TuningScene scene) {
    return impl_->step_s(tuning, scene);
}
void TuningBench::forget() {
    impl_->forget();
}
std::uint64_t TuningBench::elements() const noexcept {
    return impl_->elements();
}
std::size_t TuningBench::peak_bytes() const noexcept {
    return impl_->peak_bytes();
}

}  // namespace spillway::engine
