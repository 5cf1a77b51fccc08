// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <filesystem>
#include <memory>
#include <new>
#include <stdexcept>
#include <tuple>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "cpu_optim/isa.h"
#include "engine/measure/machine_memory.h"
#include "integrations/python/bound_optimizer.h"
#include "integrations/python/hyper_fields.h"
#include "nvme/io_backend.h"

namespace spillway::integrations {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

nvme::BackendKind io_backend_of(std::string_view name) {
    const auto kind = nvme::backend_kind(name);
    if (!kind)
        throw std::invalid_argument(fmt::format("io_backend is \"{}\", it must be one of \"{}\"",
                                                name, fmt::join(nvme::backend_names(), "\", \"")));
    return *kind;
}

/// Optimizers that live when the interpreter ends finish what they do, whether or not anything
/// still deletes them.
nb::object drained_at_exit(const std::shared_ptr<OptimizerMaker>& maker) {
    nb::object live = nb::module_::import_("weakref").attr("WeakSet")();
    const auto drain = nb::cpp_function([live, maker] {
        maker->drain();
        for (const nb::handle optimizer : nb::list(live))
            nb::cast<BoundOptimizer&>(optimizer).drain();
    });
    nb::module_::import_("atexit").attr("register")(drain);
    return live;
}

offload::TensorOptimizerOptions options_of(std::size_t host_bytes,
                                           const std::filesystem::path& nvme,
                                           const std::vector<std::filesystem::path>& more_nvme,
                                           const std::filesystem::path& out,
                                           std::size_t chunk_bytes, std::string_view state,
                                           const std::string& average) {
    offload::TensorOptimizerOptions options;
    options.host_bytes = host_bytes;
    options.nvme = nvme;
    options.more_nvme = more_nvme;
    options.out = out;
    options.chunk_bytes = chunk_bytes;
    options.state = cpu_optim::parse_state_format(state);
    options.average = offload::parse_average(average);
    return options;
}

/// (name, elements or shape, type, group) of a parameter that there may not be yet.
using Shape = std::variant<std::uint64_t, std::vector<std::uint64_t>>;
using Planned = std::tuple<std::string, Shape, std::string, std::uint32_t>;

offload::Parameter planned_parameter(const Planned& planned) {
    const auto& [name, shape, type, group] = planned;
    const auto* const elements = std::get_if<std::uint64_t>(&shape);
    if (type != "float32" && type != "bfloat16")
        throw std::invalid_argument(fmt::format(
            "parameter '{}' is {}, it must be \"float32\" or \"bfloat16\"", name, type));
    return {name, elements != nullptr ? std::vector{*elements} : std::get<1>(shape),
            type == "bfloat16" ? offload::ParameterType::bf16 : offload::ParameterType::fp32, group,
            nullptr};
}

void check_room(const std::vector<Planned>& parameters, std::string_view optimizer,
                nb::iterable groups, const offload::TensorOptimizerOptions& options) {
    std::vector<offload::Parameter> planned;
    for (const auto& parameter : parameters)
        planned.push_back(planned_parameter(parameter));
    offload::TensorOptimizer::check_room(planned, hyper_of_groups(optimizer, groups), options);
}

}  // namespace

void bind_construction(nb::class_<BoundOptimizer>& optimizer) {
    const auto maker = std::make_shared<OptimizerMaker>();
    optimizer.def(
        "__init__",
        [maker, live = drained_at_exit(maker)](
            nb::pointer_and_handle<BoundOptimizer> self, nb::iterable parameters,
            std::string_view kind, nb::iterable groups, std::size_t host_bytes,
            const std::filesystem::path& nvme, const std::filesystem::path& out,
            std::size_t chunk_bytes, std::size_t threads, std::string_view isa,
            std::string_view io_backend, std::string client_settings,
            const std::vector<std::filesystem::path>& more_nvme, std::string_view state,
            std::uint64_t rounding_seed, const std::string& average) {
            auto options =
                options_of(host_bytes, nvme, more_nvme, out, chunk_bytes, state, average);
            options.rounding_seed = rounding_seed;
            options.threads = threads == 0 ? engine::usable_processors() : threads;
            options.isa = cpu_optim::parse_isa(isa);
            options.io.every_drive.backend = io_backend_of(io_backend);
            options.client_settings = std::move(client_settings);
            new (self.p) BoundOptimizer(*maker, parameters, kind, groups, std::move(options));
            try {
                live.attr("add")(self.h);
            } catch (...) {  // this runs Python code, so Ctrl-C may come in here
                std::destroy_at(self.p);
                throw;
            }
        },
        "parameters"_a, "optimizer"_a, "groups"_a, nb::kw_only(), "host_bytes"_a, "nvme"_a = "",
        "out"_a = "", "chunk_bytes"_a = 0, "threads"_a = 0, "isa"_a = "auto",
        "io_backend"_a = "auto", "client_settings"_a = "{}",
        "more_nvme"_a = std::vector<std::filesystem::path>{}, "state"_a = "fp32",
        "rounding_seed"_a = 0, "average"_a = "off",
        nb::sig("def __init__(self, parameters: collections.abc.Iterable[tuple[str, object, int]], "
                "optimizer: str, groups: collections.abc.Iterable[dict[str, typing.Any]], "
                "*, host_bytes: int, nvme: str | os.PathLike[str] = '', "
                "out: str | os.PathLike[str] = '', chunk_bytes: int = 0, threads: int = 0, "
                "isa: str = 'auto', io_backend: str = 'auto', client_settings: str = '{}', "
                "more_nvme: collections.abc.Sequence[str | os.PathLike[str]] = (), "
                "state: str = 'fp32', rounding_seed: int = 0, average: str = 'off') -> None"),
        R"(Takes the parameters where they lie; reserves host memory, and the drive's, at once.

Args:
    parameters: (name, array, group) each, names distinct. The arrays, float32 or bfloat16, writable,
        of any shape, are updated in place and kept alive. ``group`` is an index into ``groups``.
    optimizer: "adam" (AdamW and NAdam too), "sgd", "adagrad", "lion", "rmsprop", or of whole tensors, which
        a step comes to twice, "lamb" or "lars", or three times, "adafactor".
    groups: a dict for each group; fields that are left out take their defaults. Numbers, or where
        so marked booleans:
        adam: learning_rate 1e-3, beta1 0.9, beta2 0.999, epsilon 1e-8, weight_decay 0.01, decay
        "decoupled" or "l2", amsgrad (boolean), nesterov (boolean: NAdam, not with amsgrad),
        momentum_decay 4e-3 (of nesterov); sgd: learning_rate 1e-3, momentum, dampening,
        weight_decay, nesterov (boolean); adagrad: learning_rate 1e-2, learning_rate_decay,
        weight_decay, initial_accumulator_value, epsilon 1e-10; lion: learning_rate 1e-4, beta1 0.9,
        beta2 0.99, weight_decay; rmsprop: learning_rate 1e-2, alpha 0.99, epsilon 1e-8,
        weight_decay, momentum, centred (boolean); lamb: learning_rate 1e-3, beta1 0.9, beta2 0.999,
        epsilon 1e-6, weight_decay 0.01, least_weight_norm 0, most_weight_norm inf; lars: learning_rate
        0.1, momentum 0.9, weight_decay 1e-4, trust_coefficient 1e-3; adafactor: learning_rate 1e-2,
        beta2_decay -0.8, epsilon1 None (the float32 machine epsilon), epsilon2 1e-3, clip_threshold 1,
        weight_decay 0; all: maximise (boolean).
    host_bytes: host memory for state and staging together, in bytes. See available_host_bytes().
    nvme: a folder on a drive for the state that does not fit; empty: all must fit host_bytes.
    out: a folder for commits; empty: none can be made.
    chunk_bytes: of an fp32 plane of a chunk, a multiple of 64 KiB; 0: chosen here.
    threads: of the update; 0: as many as this process may run on.
    isa: "auto" or one of isas(). Every one gives the same bits.
    io_backend: "auto" or one of io_backends().
    client_settings: a JSON object, kept with the commits.
    more_nvme: folders on further drives; state is divided over all, in proportion to their rates.
    state: "fp32"; or "bf16" or "int8", which take a half or a quarter of the room and round: values are
        decoded and encoded by every update, stochastically where it needs that. Not with amsgrad,
        centred or adafactor.
    rounding_seed: of stochastic rounding, a hash of it, the tensor's number, the element and the step.
    average: "off"; or "ema:DECAY" or "swa:EVERY": a running average of every parameter's float32 masters,
        taken up after each or after every EVERY-th of its updates; read_average() reads it. Of a run in `out` DECAY
        alone may change.

Ctrl-C raises KeyboardInterrupt: what has been reserved is given back as soon as the kernel returns it,
and until then the next optimizer waits.

Raises:
    ValueError: a parameter, group or option is not as above; the text names it.
    Refused: host memory or the drive is too small, or the folder ``out`` cannot be used.
    OSError: a folder or file cannot be opened.)");
    optimizer.def_static(
        "check_room",
        [](const std::vector<Planned>& parameters, std::string_view kind, nb::iterable groups,
           std::size_t host_bytes, const std::filesystem::path& nvme,
           const std::filesystem::path& out, std::size_t chunk_bytes,
           const std::vector<std::filesystem::path>& more_nvme, std::string_view state,
           const std::string& average) {
            check_room(parameters, kind, groups,
                       options_of(host_bytes, nvme, more_nvme, out, chunk_bytes, state, average));
        },
        "parameters"_a, "optimizer"_a, "groups"_a, nb::kw_only(), "host_bytes"_a, "nvme"_a = "",
        "out"_a = "", "chunk_bytes"_a = 0, "more_nvme"_a = std::vector<std::filesystem::path>{},
        "state"_a = "fp32", "average"_a = "off",
        nb::sig("def check_room(parameters: list[tuple[str, int | collections.abc.Sequence[int], "
                "str, int]], optimizer: str, "
                "groups: collections.abc.Iterable[dict[str, typing.Any]], *, host_bytes: int, "
                "nvme: str | os.PathLike[str] = '', out: str | os.PathLike[str] = '', "
                "chunk_bytes: int = 0, "
                "more_nvme: collections.abc.Sequence[str | os.PathLike[str]] = (), "
                "state: str = 'fp32', average: str = 'off') -> None"),
        "Raises what the constructor would for want of memory or of room on the drive, and makes "
        "nothing. ``parameters``: (name, elements or shape, \"float32\" or \"bfloat16\", group) "
        "each; "
        "adafactor needs the shape.");
}

}  // namespace spillway::integrations
