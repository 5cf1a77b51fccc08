// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/settings/clip.h"
#include "engine/settings/tuning.h"
#include "nvme/io_backend.h"

namespace spillway::engine {

/// Everything `spillway train` can be told. Sizes in bytes, times in seconds; 0 means "chosen for
/// you" where a comment says so. Checked once by problems_of().
struct TrainSettings {
    // The model and what it learns from: fixed by the run.
    std::string model;              ///< "gpt2:LAYERSxHIDDENxHEADS"
    std::uint32_t vocab = 256;      ///< tokens; 256 for text as bytes
    std::uint32_t context = 1024;   ///< longest sequence the model can take
    std::uint32_t ffn = 0;          ///< width of the feed-forward part; 0: 4 x hidden
    std::vector<std::string> data;  ///< files of text, read as bytes, one after the other
    std::uint64_t seed = 1;         ///< of initial values and order of the data
    std::uint32_t batch = 8;        ///< sequences per step
    std::uint32_t seq = 0;          ///< tokens per sequence; 0: the context

    // Formats: fixed by the run.
    std::string state = "fp32";    ///< of the optimizer's moments
    std::string compute = "fp32";  ///< of forward and backward
    std::string grad = "fp32";     ///< in which gradients leave the device

    // The optimizer: fixed by the run.
    std::string optimizer = "adamw";
    double lr = 3e-4;                  ///< peak learning rate
    double beta1 = 0.9;                ///< decay of the first moment
    double beta2 = 0.95;               ///< decay of the second moment
    double momentum = 0.9;             ///< of sgd, rmsprop and lars
    double trust_coefficient = 1e-3;   ///< of lars: a step's length over its weights'
    double beta2_decay = -0.8;         ///< of adafactor: 1 - beta2 at step t is t to this power
    double update_clip = 1;            ///< of adafactor: most root mean square of an update
    double epsilon = 1e-8;             ///< added to the root of the second moment
    double weight_decay = 0.1;         ///< of matrices; vectors are never decayed
    std::string schedule = "cosine";   ///< of the learning rate: constant, linear, cosine
    std::uint64_t warmup = 0;          ///< updates over which the rate rises from 0
    double min_lr = 0;                 ///< the rate at the schedule's end, as a part of lr
    std::uint64_t schedule_steps = 0;  ///< updates to the schedule's end; 0: the first --steps
    Clip clip;                         ///< of the gradients
    std::string average = "off";       ///< of the weights: off, ema:DECAY, swa:EVERY
    std::string nonfinite = "skip";    ///< what a step with non-finite gradients does: skip, stop
    std::string durable = "on";        ///< two copies and commits, or one copy: on, off

    // How long: may change on a resume.
    std::uint64_t steps = 0;                ///< in all, also after a resume; 0: not given
    double budget_s = 0;                    ///< time in all; 0: not given
    std::filesystem::path replay_progress;  ///< a metrics.jsonl whose progress is used again

    // Where things live: placement, changes no bit.
    std::string device = "cpu";    ///< or several by commas, which share each step
    std::uint64_t device_mem = 0;  ///< a cap below the device's size; 0: all of it
    std::uint64_t host_mem = 0;    ///< 0: free memory minus a margin
    /// Folders of the NVMe tier, one a drive, by commas; "" or no_nvme: no such tier. In a resume
    /// the state moves to the drives that are given; "" leaves it where it is.
    std::string nvme;
    std::uint32_t micro_batches = 0;  ///< 0: the fewest that fit
    std::string recompute = "auto";   ///< auto, cheap-parts, full
    Tuning tuning;                    ///< what is set of it; the rest is tuned, or the defaults
    std::string tune = "auto";        ///< search for the rest: auto, off, or a time
    std::uint32_t threads = 0;        ///< 0: every processor the process may use
    std::string isa = "auto";
    std::string io_backend = "auto";

    // What is written when.
    std::filesystem::path out;          ///< folder of the run
    bool resume = false;                ///< go on from the last commit in `out`
    std::string commit_every = "10m";   ///< steps ("500") or time ("10m")
    std::uint64_t eval_every = 0;       ///< steps; 0: at the end only
    std::uint32_t eval_sequences = 64;  ///< held-out sequences of an evaluation; 0: none
    std::string json;                   ///< file of the summary, "-": standard output
    std::filesystem::path trace;        ///< file of the trace; "": none
    std::string probe = "on";           ///< measure the machine for the bound: on, off
    std::filesystem::path profile;      ///< file of the machine's rates; "": the user's cache

    [[nodiscard]] std::uint32_t sequence_tokens() const noexcept {
        return seq == 0 ? context : seq;
    }
};

/// Of --device, one a rank.
[[nodiscard]] std::vector<std::string> device_list(const std::string& device);

/// As a value of --nvme: no drive.
inline constexpr const char* no_nvme = "none";
/// Of --nvme, in its order; none without it.
[[nodiscard]] std::vector<std::filesystem::path> nvme_folders(const std::string& nvme);

[[nodiscard]] std::uint64_t tokens_per_step(const TrainSettings& settings) noexcept;

/// Of sound settings.
[[nodiscard]] nvme::BackendKind io_backend_kind(const TrainSettings& settings);

/// When commits are made: every so many steps or seconds, exactly one of which is not 0.
struct CommitInterval {
    std::uint64_t steps = 0;
    double seconds = 0;
};
/// "500" is steps, "10m" time. Throws std::invalid_argument on anything else and on 0.
[[nodiscard]] CommitInterval parse_commit_interval(const std::string& text);

enum class SettingsUse {
    train,  ///< data, a length and a folder for the run are needed
    plan,   ///< the model is enough
};

/// Every contradiction and value out of range, one sentence each that names the options; empty:
/// sound. Looks at the settings alone, not at the machine or any folder.
[[nodiscard]] std::vector<std::string> problems_of(const TrainSettings& settings,
                                                   SettingsUse use = SettingsUse::train);

}  // namespace spillway::engine
