// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/train_settings.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <fmt/format.h>

#include "cuda/device_spec.h"
#include "cuda/trainer_kernels.h"
#include "engine/cli/backend_option.h"
#include "engine/cli/units.h"
#include "engine/compute/compute_pool.h"
#include "engine/model/gpt2_config.h"
#include "engine/settings/average_choice.h"
#include "engine/settings/optimizer_choice.h"
#include "offload/element_order.h"

namespace spillway::engine {
namespace {

using Problems = std::vector<std::string>;

void check_needed(const TrainSettings& s, SettingsUse use, Problems& problems) {
    if (s.model.empty())
        problems.emplace_back("--model is needed, such as gpt2:12x768x12");
    if (use == SettingsUse::plan)
        return;
    if (s.data.empty())
        problems.emplace_back("--data is needed: one or more files of text");
    if (s.out.empty())
        problems.emplace_back("--out is needed: the folder the run is kept in");
    if (s.steps == 0 && s.budget_s == 0 && s.replay_progress.empty())
        problems.emplace_back("--steps N or --budget TIME is needed: how long to train");
}

void check_length(const TrainSettings& s, Problems& problems) {
    if (s.steps > 0 && s.budget_s > 0)
        problems.push_back(fmt::format("--steps {} and --budget {}s exclude each other; give one",
                                       s.steps, s.budget_s));
    if (s.steps > 0 && !s.replay_progress.empty())
        problems.push_back(fmt::format(
            "--steps {} and --replay-progress {} exclude each other: the log says how many steps",
            s.steps, s.replay_progress.string()));
    if (s.schedule_steps > 0 && s.steps == 0)
        problems.push_back(fmt::format(
            "--schedule-steps {} needs --steps; with --budget the schedule follows the clock",
            s.schedule_steps));
}

/// With these no product of a step's sizes overflows, and what is impossible is refused at once.
constexpr std::uint32_t most_sequences = 1u << 20;
constexpr std::uint64_t most_step_tokens = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t most_chunk_bytes = std::uint64_t{1} << 36;

/// What a step keeps for backward, roughly: far above any machine's memory, far below 2^64.
void check_activations(const TrainSettings& s, const Gpt2Config& config, Problems& problems) {
    constexpr double most_bytes = 0x1p57;
    const double tokens = static_cast<double>(s.batch) * s.sequence_tokens();
    const double layer = 16.0 * config.hidden + 2.0 * config.feed_forward +
                         static_cast<double>(config.heads) * s.sequence_tokens();
    const double bytes = 4 * tokens * (config.layers * layer + 2.0 * config.vocabulary);
    if (bytes > most_bytes)
        problems.push_back(fmt::format(
            "--batch {} and --seq {}: a step of this model would keep about {:.3g} bytes, more "
            "than can be planned for; take fewer or shorter sequences",
            s.batch, s.sequence_tokens(), bytes));
}

void check_model(const TrainSettings& s, Problems& problems) {
    if (s.model.empty())
        return;
    try {
        auto config = parse_gpt2(s.model);
        config.vocabulary = s.vocab;
        config.context = s.context;
        config.feed_forward = s.ffn;
        resolve(config);
        check_activations(s, config, problems);
    } catch (const std::invalid_argument& error) {
        problems.emplace_back(std::string("--model: ") + error.what());
    }
}

void check_most(Problems& problems, const char* name, std::uint64_t value, std::uint64_t most) {
    if (value > most)
        problems.push_back(fmt::format("--{} is {}; the most is {}", name, value, most));
}

void check_batch(const TrainSettings& s, Problems& problems) {
    check_most(problems, "batch", s.batch, most_sequences);
    check_most(problems, "eval-sequences", s.eval_sequences, most_sequences);
    if (s.batch <= most_sequences && tokens_per_step(s) > most_step_tokens)
        problems.push_back(
            fmt::format("--batch {} times --seq {} is {} tokens a step; the most is {}", s.batch,
                        s.sequence_tokens(), tokens_per_step(s), most_step_tokens));
    if (s.batch == 0)
        problems.emplace_back("--batch is 0; at least 1 sequence a step is needed");
    if (s.vocab < 256)
        problems.push_back(
            fmt::format("--vocab is {}; text read as bytes needs at least 256", s.vocab));
    if (s.seq > s.context)
        problems.push_back(
            fmt::format("--seq {} is longer than --context {}: the model has no positions for it",
                        s.seq, s.context));
    const auto devices = static_cast<std::uint32_t>(device_list(s.device).size());
    if (s.batch % devices != 0)
        problems.push_back(fmt::format(
            "--batch {} cannot be shared by the {} devices of --device; take a multiple of {}",
            s.batch, devices, devices));
    else if (s.micro_batches > 0 && s.batch / devices % s.micro_batches != 0)
        problems.push_back(fmt::format("--micro-batches {} does not divide --batch {}{}",
                                       s.micro_batches, s.batch / devices,
                                       devices == 1 ? "" : " / devices"));
}

void check_range(Problems& problems, const char* name, double value, double low, double high,
                 const char* range) {
    if (!(value >= low && value <= high))
        problems.push_back(fmt::format("--{} is {}; it must be {}", name, value, range));
}

void check_optimizer(const TrainSettings& s, Problems& problems) {
    const double below_one = std::nextafter(1.0, 0.0);
    const double large = 1e30;
    check_range(problems, "lr", s.lr, 0, large, "from 0 to 1e30");
    check_range(problems, "beta1", s.beta1, 0, below_one, "at least 0 and below 1");
    check_range(problems, "beta2", s.beta2, 0, below_one, "at least 0 and below 1");
    check_range(problems, "momentum", s.momentum, 0, below_one, "at least 0 and below 1");
    check_range(problems, "trust-coefficient", s.trust_coefficient, 0, large, "from 0 to 1e30");
    check_range(problems, "beta2-decay", s.beta2_decay, -large, 0, "from -1e30 to 0");
    check_range(problems, "update-clip", s.update_clip, 1, large, "from 1 to 1e30");
    check_range(problems, "epsilon", s.epsilon, 0, large, "from 0 to 1e30");
    check_range(problems, "weight-decay", s.weight_decay, 0, large, "from 0 to 1e30");
    if (s.optimizer == "adafactor" && s.state != "fp32")
        problems.push_back(fmt::format(
            "--state is {}; adafactor keeps few values, for rows and columns, and those "
            "in fp32: leave --state out",
            s.state));
    check_range(problems, "min-lr", s.min_lr, 0, 1, "a part of --lr, from 0 to 1");
    if (s.clip.kind != ClipKind::off && !(s.clip.most > 0))
        problems.push_back(
            fmt::format("--clip is {}; it must be above 0, or off", clip_text(s.clip)));
    if (s.schedule_steps > 0 && s.warmup > s.schedule_steps)
        problems.push_back(fmt::format("--warmup {} is longer than --schedule-steps {}", s.warmup,
                                       s.schedule_steps));
}

/// An average that the run would end without.
void check_average(const TrainSettings& s, Problems& problems) {
    const auto rule = average_rule(s);
    if (rule && s.steps > 0 && rule->every > s.steps)
        problems.push_back(fmt::format(
            "--average {}: --steps {} ends the run before the average takes up any weights; take "
            "swa:{} or less",
            s.average, s.steps, s.steps));
}

/// What a GPU's kernels cannot do, said before anything of the run is made.
void check_gpu(const TrainSettings& s, Problems& problems) {
    const bool on_gpu =
        cuda::parse_device_spec(device_list(s.device).front()).kind == cuda::DeviceSpec::Kind::cuda;
    if (on_gpu && s.sequence_tokens() > cuda::most_attention_tokens)
        problems.push_back(fmt::format(
            "--seq {}{}: attention on --device {} takes sequences of up to {} tokens; take --seq "
            "{} or less, or --device cpu",
            s.sequence_tokens(), s.seq == 0 ? " (the context)" : "", s.device,
            cuda::most_attention_tokens, cuda::most_attention_tokens));
}

void check_placement(const TrainSettings& s, Problems& problems) {
    check_most(problems, "threads", s.threads, most_threads);
    check_most(problems, "chunk-size", s.tuning.chunk_bytes, most_chunk_bytes);
    check_most(problems, "update-window", s.tuning.update_window, offload::most_window);
    check_most(problems, "weight-window", s.tuning.weight_window, offload::most_window);
    check_most(problems, "io-block", s.tuning.io_block_bytes, most_io_block_bytes);
    check_most(problems, "io-depth", s.tuning.io_depth, most_io_depth);
    check_most(problems, "update-threads", s.tuning.update_threads, most_threads);
    const auto check_multiple = [&](const char* name, std::uint64_t bytes, std::uint64_t of) {
        if (bytes % of != 0)
            problems.push_back(
                fmt::format("--{} is {} bytes; it must be a multiple of {}", name, bytes, of));
    };
    check_multiple("chunk-size", s.tuning.chunk_bytes, offload::tile_elements * sizeof(float));
    check_multiple("io-block", s.tuning.io_block_bytes, 4096);
}

}  // namespace

nvme::BackendKind io_backend_kind(const TrainSettings& settings) {
    return backend_kind(settings.io_backend);
}

CommitInterval parse_commit_interval(const std::string& text) {
    const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
        return std::isdigit(c) != 0;
    });
    CommitInterval interval;
    if (!plain)
        interval.seconds = parse_duration_s(text);
    else if (text.size() <= 18)
        interval.steps = std::stoull(text);
    if (interval.steps == 0 && !(interval.seconds > 0))
        throw std::invalid_argument("\"" + text + "\" is no step count and no time above 0");
    return interval;
}

std::vector<std::string> device_list(const std::string& device) {
    return parse_list(device);
}

std::vector<std::filesystem::path> nvme_folders(const std::string& nvme) {
    if (nvme.empty() || nvme == no_nvme)
        return {};
    const auto folders = parse_list(nvme);
    return {folders.begin(), folders.end()};
}

std::uint64_t tokens_per_step(const TrainSettings& settings) noexcept {
    return std::uint64_t{settings.batch} * settings.sequence_tokens();
}

std::vector<std::string> problems_of(const TrainSettings& settings, SettingsUse use) {
    Problems problems;
    check_needed(settings, use, problems);
    check_length(settings, problems);
    check_model(settings, problems);
    check_batch(settings, problems);
    check_optimizer(settings, problems);
    check_average(settings, problems);
    check_placement(settings, problems);
    check_gpu(settings, problems);
    return problems;
}

}  // namespace spillway::engine
