// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/setting_fields.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cpu_optim/isa.h"
#include "cuda/cuda_device.h"
#include "cuda/device_spec.h"
#include "engine/cli/backend_option.h"
#include "engine/cli/output_place.h"
#include "engine/cli/units.h"
#include "engine/measure/profile.h"
#include "engine/model/gpt2_config.h"
#include "engine/settings/average_choice.h"
#include "engine/settings/field_kinds.h"
#include "engine/settings/optimizer_choice.h"

namespace spillway::engine {
namespace {

using namespace fields;
using Scope = SettingScope;
using Settings = TrainSettings;

SettingField data_field() {
    return make(
        {"data", "FILE...", "the text to learn, read as bytes", Scope::run}, JsonKind::list,
        [](const Settings& s) { return fmt::format("{}", fmt::join(s.data, ",")); },
        [](Settings& s, const std::string& value) { s.data = parse_list(value); });
}

SettingField clip_field() {
    return make(
        {"clip", "X|value:X|layer:X|off",
         "the most of the gradients' global norm, of each value, or of each tensor's norm "
         "(inexact)",
         Scope::run},
        JsonKind::text, [](const Settings& s) { return clip_text(s.clip); },
        [](Settings& s, const std::string& value) { s.clip = parse_clip(value); });
}

SettingField budget_field() {
    return make(
        {"budget", "TIME", "time in all (\"24h\"); the schedule follows the clock", Scope::length,
         "none"},
        JsonKind::number, [](const Settings& s) { return fmt::format("{}", s.budget_s); },
        [](Settings& s, const std::string& value) {
            // 0 alone is what the settings of a run without a budget say.
            s.budget_s = parse_duration_s(value);
            if (s.budget_s == 0 && value != "0")
                throw std::invalid_argument("\"" + value + "\" must be above 0");
        });
}

SettingField resume_field() {
    return make(
        {"resume", "", "go on from the last commit in --out; settings not given are the run's"},
        JsonKind::boolean, [](const Settings& s) { return s.resume ? "true" : "false"; },
        [](Settings& s, const std::string& value) {
            if (value != "true" && value != "false")
                throw std::invalid_argument("\"" + value + "\" is neither true nor false");
            s.resume = value == "true";
        });
}

void check_model(const std::string& value) {
    if (value.starts_with("llama:"))
        throw std::invalid_argument(
            "llama models are not available in this version; it takes gpt2:LAYERSxHIDDENxHEADS");
    static_cast<void>(parse_gpt2(value));
}

void check_nvme(const std::string& value) {
    const auto folders = parse_list(value);
    for (auto folder = folders.begin(); folder != folders.end(); ++folder) {
        if (std::find(folders.begin(), folder, *folder) != folder)
            throw std::invalid_argument(fmt::format(
                "\"{}\": {} is given twice; name each drive's folder once", value, *folder));
    }
}

/// Of several: simulated ones that are alike, or different GPUs.
void check_group(const std::string& value, const std::vector<std::string>& devices) {
    using Kind = cuda::DeviceSpec::Kind;
    const auto first = cuda::parse_device_spec(devices.front()).kind;
    for (auto device = devices.begin(); device != devices.end(); ++device) {
        if (first == Kind::cpu || cuda::parse_device_spec(*device).kind != first ||
            (first == Kind::sim && *device != devices.front()))
            throw std::invalid_argument(fmt::format(
                "\"{}\": devices that share a run's steps are GPUs, as in cuda:0,cuda:1, or "
                "simulated ones of one kind, as in sim:1GiB,sim:1GiB; name another device alone",
                value));
        if (first == Kind::cuda && std::find(devices.begin(), device, *device) != device)
            throw std::invalid_argument(
                fmt::format("\"{}\": {} is given twice; name each GPU once", value, *device));
    }
}

void check_gpus(const std::string& value, const std::vector<std::string>& devices) {
    const auto report = cuda::inspect_cuda();
    for (const auto& device : devices) {
        const auto refusal = cuda::cuda_refusal(report, cuda::parse_device_spec(device).ordinal);
        if (!refusal.empty())
            throw std::invalid_argument(
                devices.size() == 1 ? fmt::format("\"{}\": {}", value, refusal)
                                    : fmt::format("\"{}\": {}: {}", value, device, refusal));
    }
}

void check_device(const std::string& value) {
    constexpr double least = 1e6;
    constexpr double most = 1e15;
    const auto devices = device_list(value);
    const auto device = cuda::parse_device_spec(devices.front());
    if (devices.size() > 1)
        check_group(value, devices);
    if (device.kind == cuda::DeviceSpec::Kind::cuda)
        check_gpus(value, devices);
    const auto rate = device.link_bytes_per_s;
    if (rate != 0 && !(rate >= least && rate < most))
        throw std::invalid_argument(
            fmt::format("\"{}\": its link moves {} bytes/s; simulated are 1MB/s to below 1000TB/s",
                        value, rate));
}

void check_isa(const std::string& value) {
    static_cast<void>(cpu_optim::parse_isa(value));
}

void check_tune(const std::string& value) {
    if (value != "auto" && value != "off" && !(parse_duration_s(value) > 0))
        throw std::invalid_argument("\"" + value + "\" is neither auto, off, nor a time above 0");
}

void check_commit_interval(const std::string& value) {
    static_cast<void>(parse_commit_interval(value));
}

std::vector<SettingField> model_fields() {
    return {
        text({"model", "gpt2:LAYERSxHIDDENxHEADS", "the model; needed", Scope::run},
             &Settings::model, check_model),
        number({"vocab", "N", "tokens in the vocabulary", Scope::run}, &Settings::vocab),
        number({"context", "N", "longest sequence the model can take", Scope::run},
               &Settings::context),
        number({"ffn", "N", "width of the feed-forward part", Scope::run, "4 x hidden"},
               &Settings::ffn),
        data_field(),
        number({"seed", "N", "of initial values and of the order of the data", Scope::run},
               &Settings::seed),
        number({"batch", "N", "sequences per step", Scope::run}, &Settings::batch),
        number({"seq", "N", "tokens per sequence", Scope::run, "the context"}, &Settings::seq),
        choice({"state", "", "format of the optimizer's moments; only fp32 is exact", Scope::run},
               &Settings::state, {"fp32", "bf16", "int8"}),
        choice({"compute", "", "format of forward and backward", Scope::run}, &Settings::compute,
               {"fp32"}, {{"bf16"}}),
        choice({"grad", "", "format in which gradients leave the device", Scope::run},
               &Settings::grad, {"fp32"}, {{"bf16"}}),
    };
}

std::vector<SettingField> optimizer_fields() {
    return {
        choice({"optimizer", "", "the optimizer", Scope::run}, &Settings::optimizer,
               optimizer_names(), {{"muon"}, {"sam"}}),
        number({"lr", "X",
                "peak learning rate (adafactor: of steps as a part of each tensor's weights)",
                Scope::run},
               &Settings::lr),
        number({"beta1", "X", "decay of the first moment", Scope::run}, &Settings::beta1),
        number({"beta2", "X", "decay of the second moment (lion: of the first, as it is kept)",
                Scope::run},
               &Settings::beta2),
        number({"momentum", "X", "of sgd, rmsprop and lars; 0: none, and no state for it but lars'",
                Scope::run},
               &Settings::momentum),
        number({"trust-coefficient", "X", "of lars: a step's length, as a part of its weights'",
                Scope::run},
               &Settings::trust_coefficient),
        number({"beta2-decay", "X",
                "of adafactor: the second moment's decay at update t is 1 - t to this power",
                Scope::run},
               &Settings::beta2_decay),
        number({"update-clip", "X",
                "of adafactor: most root mean square of an update before its learning rate",
                Scope::run},
               &Settings::update_clip),
        number({"epsilon", "X", "added to the root of the second moment", Scope::run},
               &Settings::epsilon),
        number({"weight-decay", "X", "of matrices; vectors are never decayed", Scope::run},
               &Settings::weight_decay),
        choice({"schedule", "", "of the learning rate after the warmup", Scope::run},
               &Settings::schedule, {"constant", "linear", "cosine"}),
        number({"warmup", "N", "updates over which the learning rate rises from 0", Scope::run},
               &Settings::warmup),
        number(
            {"min-lr", "X", "learning rate at the schedule's end, as a part of --lr", Scope::run},
            &Settings::min_lr),
        number({"schedule-steps", "N",
                "updates to the schedule's end; fixed by the run, so that a resume with more "
                "--steps changes nothing that was",
                Scope::run, "the run's first --steps"},
               &Settings::schedule_steps),
        clip_field(),
        text({"average", "off|ema:DECAY|swa:EVERY",
              "of the weights, kept beside them (4 bytes each, read and written in an update): "
              "exponential, or equal over every EVERY-th update",
              Scope::run},
             &Settings::average,
             [](const std::string& value) { static_cast<void>(offload::parse_average(value)); }),
        choice({"nonfinite", "", "what a step with non-finite gradients does", Scope::run},
               &Settings::nonfinite, {"skip", "stop"}),
        choice({"durable", "", "off: one copy on the drive, a crash loses the run", Scope::run},
               &Settings::durable, {"on", "off"}),
    };
}

std::vector<SettingField> length_fields() {
    return {
        number({"steps", "N", "steps in all, also after a resume", Scope::length, "none"},
               &Settings::steps),
        budget_field(),
        path({"replay-progress", "FILE", "a metrics.jsonl whose progress takes the clock's place",
              Scope::length},
             &Settings::replay_progress),
    };
}

std::vector<SettingField> placement_fields() {
    return {
        text({"device", "cpu|sim:BYTES[@GB/s][,...]",
              "where forward and backward run; several GPUs, or simulated ones, share each step"},
             &Settings::device, check_device),
        bytes(
            {"device-mem", "BYTES", "a cap below the device's size", Scope::placement, "all of it"},
            &Settings::device_mem),
        bytes({"host-mem", "BYTES", "host memory to use", Scope::placement,
               "free memory minus a margin"},
              &Settings::host_mem),
        text({"nvme", "DIR[,DIR...]",
              "folders of the NVMe tier, one a drive; without it all must fit in memory. A resume "
              "moves the state to the folders given, or into --out for \"none\""},
             &Settings::nvme, check_nvme),
        number({"micro-batches", "N", "parts each device's sequences are cut into",
                Scope::placement, "the fewest that fit"},
               &Settings::micro_batches),
        choice({"recompute", "", "what backward computes again"}, &Settings::recompute,
               {"auto", "cheap-parts", "full"}),
        number({"threads", "N", "threads that compute", Scope::placement, "every processor"},
               &Settings::threads),
        text({"isa", "auto|scalar|avx2|avx512", "instruction set of the fused kernels"},
             &Settings::isa, check_isa),
        choice({"io-backend", "", "how the drive is driven"}, &Settings::io_backend,
               backend_choices()),
    };
}

std::vector<SettingField> tuning_fields_of_runs() {
    return {
        tuned_bytes({"chunk-size", "BYTES", "of an fp32 plane of a chunk, a multiple of 64 KiB",
                     Scope::placement, "tuned, or planned"},
                    &Tuning::chunk_bytes),
        tuned_number({"update-window", "N", "chunks of each drive under way in an update",
                      Scope::placement, "tuned, or 4"},
                     &Tuning::update_window),
        tuned_number({"weight-window", "N", "chunks of weights read ahead from drives",
                      Scope::placement, "tuned, or 4"},
                     &Tuning::weight_window),
        tuned_bytes({"io-block", "BYTES", "of one operation of a drive, at most", Scope::placement,
                     "tuned, or 4MiB"},
                    &Tuning::io_block_bytes),
        tuned_number({"io-depth", "N", "operations in flight on each drive", Scope::placement,
                      "tuned, or 32"},
                     &Tuning::io_depth),
        tuned_number({"update-threads", "N", "of --threads, that update beside the passes",
                      Scope::placement, "tuned, or all"},
                     &Tuning::update_threads),
        text({"tune", "auto|off|TIME",
              "a search for the six above on first use, kept in the profile: auto, in a run of 8 "
              "minutes or more; off, defaults alone; or for so long"},
             &Settings::tune, check_tune),
    };
}

std::vector<SettingField> output_fields() {
    return {
        path({"out", "DIR", "folder of the run; needed"}, &Settings::out),
        resume_field(),
        text({"commit-every", "N|TIME", "steps or time between commits"}, &Settings::commit_every,
             check_commit_interval),
        number({"eval-every", "N", "steps between evaluations", Scope::length, "at the end only"},
               &Settings::eval_every),
        number(
            {"eval-sequences", "N", "held-out sequences of an evaluation; 0: none", Scope::length},
            &Settings::eval_sequences),
        text({"json", "FILE|-", "where the summary goes as JSON"}, &Settings::json),
        path({"trace", "FILE", "what ran when, lane by lane, for Chrome or Perfetto",
              Scope::placement, "nowhere"},
             &Settings::trace),
        choice({"probe", "", "measure the machine for the bound (seconds, once)"}, &Settings::probe,
               {"on", "off"}),
        path({"profile", "FILE", "the machine's measured rates", Scope::placement,
              "$XDG_CACHE_HOME/spillway/profile.json"},
             &Settings::profile),
    };
}

/// What is asked of the disk, as soon as the user names it. --out stands before --json and
/// --trace.
void check_given(const SettingField& field, const Settings& settings) {
    if (field.name == "json")
        check_json_destination(settings.json, settings.out);
    if (field.name == "trace" && !settings.trace.empty())
        check_file_destination(settings.trace, settings.out);
    if (field.name == "profile" && !settings.profile.empty())
        check_profile_path(settings.profile);
}

}  // namespace

const std::vector<SettingField>& setting_fields() {
    static const std::vector<SettingField> all = [] {
        std::vector<SettingField> fields;
        for (auto&& part : {model_fields(), optimizer_fields(), length_fields(), placement_fields(),
                            tuning_fields_of_runs(), output_fields()})
            fields.insert(fields.end(), part.begin(), part.end());
        return fields;
    }();
    return all;
}

void declare_settings(OptionSet& options, TrainSettings& settings) {
    const TrainSettings defaults;
    for (const auto& field : setting_fields()) {
        const auto shown = field.default_words.empty() && field.kind != JsonKind::boolean
                               ? field.read(defaults)
                               : field.default_words;
        options.add({field.name, field.value_name, field.help, shown, field.kind,
                     [&settings, &field](const std::string& text) {
                         field.write(settings, text);
                         check_given(field, settings);
                     }});
    }
    for (const auto* name : {"tbw", "kv-heads", "tokenizer"})
        options.refuse(name);
}

}  // namespace spillway::engine
