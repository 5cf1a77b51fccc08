// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <array>
#include <stdexcept>

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "integrations/python/bound_optimizer.h"

namespace spillway::integrations {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using offload::TensorId;
using OptimizerClass = nb::class_<BoundOptimizer>;

template <typename Value>
struct Choice {
    std::string_view name;
    Value value;
};

template <typename Value, std::size_t count>
Value choose(const std::array<Choice<Value>, count>& choices, std::string_view what,
             std::string_view name) {
    const auto chosen = std::find_if(choices.begin(), choices.end(),
                                     [&](const auto& choice) { return choice.name == name; });
    if (chosen != choices.end())
        return chosen->value;
    std::string accepted;
    for (const auto& choice : choices)
        accepted += fmt::format("{}\"{}\"", accepted.empty() ? "" : ", ", choice.name);
    throw std::invalid_argument(
        fmt::format("{} is \"{}\", it must be one of {}", what, name, accepted));
}

constexpr std::array<Choice<offload::NonfiniteRule>, 3> nonfinite_rules{{
    {"propagate", offload::NonfiniteRule::propagate},
    {"skip", offload::NonfiniteRule::skip},
    {"stop", offload::NonfiniteRule::stop},
}};

void bind_settings(OptimizerClass& optimizer) {
    optimizer.def_prop_ro(
        "state_planes", &BoundOptimizer::state_planes,
        "float32 values of state per element, 0 to 3: adam m, v (and with amsgrad "
        "the largest v); sgd the momentum buffer; adagrad the sum of squares; "
        "lion m; rmsprop mean of squares, momentum buffer, mean; lamb m, v; lars the "
        "momentum buffer; adafactor has none, but factors().");
    optimizer.def_prop_ro("io_backend", &BoundOptimizer::io_backend,
                          "How files are read and written, one of io_backends().");
    optimizer.def("set_group", &BoundOptimizer::set_group, "group"_a, "hyper"_a,
                  nb::sig("def set_group(self, group: int, hyper: dict[str, typing.Any]) "
                          "-> None"),
                  R"(Changes fields of a group from the next step on; the others keep their values.

Raises:
    ValueError: no such group, field or value, or more state would be needed than there is.)");
    optimizer.def(
        "rebind", &BoundOptimizer::rebind, "tensor"_a, "array"_a,
        nb::sig("def rebind(self, tensor: int, array: object) -> None"),
        "The values of parameter number ``tensor`` have moved to ``array``: same type, same "
        "number of elements.");
}

void bind_gradients(OptimizerClass& optimizer) {
    optimizer.def("give_gradient", &BoundOptimizer::give_gradient, "tensor"_a, "array"_a,
                  nb::sig("def give_gradient(self, tensor: int, array: object) -> None"),
                  R"(Gives the gradient of parameter number ``tensor``, once a step, in any order.

May be called from any thread. The array, float32, bfloat16 or float16, as many elements as the
parameter, is read until wait(), or wait_for() of that tensor, returns, and kept alive till then;
leave its values alone. A parameter without a gradient is left alone by the step.

Raises:
    ValueError: no such tensor; an array of another type or size, with gaps or not on the CPU.
    RuntimeError: the tensor has its gradient already.)");
    optimizer.def("give_gradients", &BoundOptimizer::give_gradients, "tensors"_a, "arrays"_a,
                  nb::sig("def give_gradients(self, tensors: list[int], arrays: list[object]) "
                          "-> None"),
                  "give_gradient() for many. All arrays are checked before the first is given.");
    optimizer.def("discard_gradients", &BoundOptimizer::discard_gradients,
                  "Forgets the gradients given since the last step.");
}

void bind_steps(OptimizerClass& optimizer) {
    optimizer.def(
        "begin_step",
        [](BoundOptimizer& self, double gradient_scale, std::optional<double> max_norm,
           std::string_view nonfinite) {
            return self.begin_step(
                {gradient_scale, max_norm, choose(nonfinite_rules, "nonfinite", nonfinite)});
        },
        "gradient_scale"_a = 1.0, "max_norm"_a = nb::none(), "nonfinite"_a = "propagate",
        R"(Begins the update of every parameter that was given a gradient, and returns while it runs.

Args:
    gradient_scale: multiplies every gradient, before the norm.
    max_norm: clips by the global 2-norm: gradients times min(1, max_norm / (norm + 1e-6)).
    nonfinite: what an infinity or NaN in a gradient does: "propagate" it into the weights, "skip" the
        step, or "stop" with NonfiniteGradient.

Ctrl-C while it looks at the gradients raises KeyboardInterrupt: the step is not begun, and the gradients
given are kept. Had it just begun, the next wait() raises.

Returns:
    What is known of the step; norm and nonfinite only if max_norm or nonfinite needed them.

Raises:
    NonfiniteGradient: as asked for; nothing has changed.
    IntegrityError, OSError: the drive failed; the optimizer takes no further step.)");
    optimizer.def(
        "begin_streamed_step", &BoundOptimizer::begin_streamed_step, "gradient_scale"_a = 1.0,
        "Begins a step whose gradients are still to come: each parameter is updated soon "
        "after its gradient is given. Then end_gradients(), then wait(). Neither norm nor "
        "finiteness of all can be known. Gives the same bits as begin_step().");
    optimizer.def("end_gradients", &BoundOptimizer::end_gradients,
                  "No more gradients come for the streamed step.");
    optimizer.def("wait_for", &BoundOptimizer::wait_for, "tensor"_a,
                  "Until the values of parameter number ``tensor`` are those after the step begun "
                  "last. Releases the GIL.");
    optimizer.def("wait", &BoundOptimizer::wait,
                  R"(Until the update, and a commit under way, are over. Releases the GIL.

Ctrl-C raises KeyboardInterrupt and does no harm: the update goes on, the next wait() finishes it.

Raises:
    IntegrityError, OSError: the drive failed; the optimizer takes no further step.)");
}

void bind_commits(OptimizerClass& optimizer) {
    optimizer.def(
        "recover",
        [](BoundOptimizer& self) -> nb::object {
            const auto commit = self.recover();
            if (!commit)
                return nb::none();
            return nb::make_tuple(commit->iteration, commit->client_state);
        },
        nb::sig("def recover(self) -> tuple[int, str] | None"),
        "Loads the newest commit of ``out``: state, counters, and the values of all parameters. "
        "Returns its (iteration, client_state), or None if there is none. Before the first step. "
        "Ctrl-C raises KeyboardInterrupt and does no harm: the recovery goes on, later calls wait "
        "for it, and another recover() returns its result.");
    optimizer.def(
        "commit", &BoundOptimizer::commit, "iteration"_a = 0, "client_state"_a = "",
        R"(Makes everything as it is after the step begun last durable in ``out``, and waits for it.

Ctrl-C as for wait(): the commit goes on.

Args:
    iteration: your own count, given back by recover().
    client_state: text of yours, given back by recover().

Raises:
    RuntimeError: there is no ``out``.
    OSError: the drive failed; the last commit is still whole.)");
    optimizer.def(
        "statistics",
        [](BoundOptimizer& self) {
            const auto found = self.statistics();
            nb::dict result;
            result["nvme_read_bytes"] = found.nvme_read_bytes;
            result["nvme_written_bytes"] = found.nvme_written_bytes;
            nb::list drives;
            for (const auto& drive : found.drives) {
                nb::dict one;
                one["folder"] = drive.folder.string();
                one["share"] = drive.share;
                one["read_bytes"] = drive.read_bytes;
                one["written_bytes"] = drive.written_bytes;
                one["read_bytes_per_s"] = drive.read_bytes_per_s();
                one["write_bytes_per_s"] = drive.write_bytes_per_s();
                drives.append(one);
            }
            result["drives"] = drives;
            result["commit_bytes"] = found.commit_bytes;
            result["relocated_bytes"] = found.relocated_bytes;
            result["host_bytes"] = found.host_bytes;
            result["state_bytes"] = found.state_bytes;
            result["resident_state_bytes"] = found.resident_state_bytes;
            result["update_busy_s"] = found.update_busy_s;
            result["update_wall_s"] = found.update_wall_s;
            result["stall_nvme_read_s"] = found.stall_nvme_read_s;
            result["stall_nvme_write_s"] = found.stall_nvme_write_s;
            result["stall_gradient_s"] = found.stall_gradient_s;
            return result;
        },
        nb::sig("def statistics(self) -> dict[str, int | float]"),
        "Since construction, in bytes and seconds: nvme_read_bytes, nvme_written_bytes (without "
        "commit_bytes), commit_bytes, relocated_bytes (moved at the start, since the "
        "drives were others), host_bytes (allocated), state_bytes (at rest, on both "
        "tiers), "
        "resident_state_bytes (of these, in host memory), update_busy_s (arithmetic), "
        "update_wall_s, and of that waiting stall_nvme_read_s, stall_nvme_write_s and, in streamed "
        "steps, stall_gradient_s.");
}

void bind_state(OptimizerClass& optimizer) {
    optimizer.def("steps", &BoundOptimizer::steps, "tensor"_a,
                  "How often parameter number ``tensor`` has been updated.");
    optimizer.def("set_steps", &BoundOptimizer::set_steps, "tensor"_a, "steps"_a,
                  "Sets that count, for loading a foreign checkpoint.");
    optimizer.def(
        "read_state", &BoundOptimizer::read_state, "tensor"_a, "plane"_a, "first"_a, "out"_a,
        nb::sig("def read_state(self, tensor: int, plane: int, first: int, out: object) "
                "-> None"),
        "Copies elements ``first`` on of one state plane into ``out``, a writable float32 "
        "array, as many as it has. Waits for the update.");
    optimizer.def("write_state", &BoundOptimizer::write_state, "tensor"_a, "plane"_a, "first"_a,
                  "values"_a,
                  nb::sig("def write_state(self, tensor: int, plane: int, first: int, "
                          "values: object) -> None"),
                  "Replaces elements ``first`` on of one state plane by float32 ``values``. Waits "
                  "for the update. Ctrl-C may leave a part of them replaced.");
    optimizer.def(
        "state_view",
        [](nb::pointer_and_handle<BoundOptimizer> self, TensorId tensor,
           std::size_t plane) -> nb::object {
            const auto view = self.p->state_view(tensor, plane);
            if (view.empty())
                return nb::none();
            using View = nb::ndarray<nb::numpy, float, nb::ndim<1>>;
            return nb::cast(View(view.data(), {view.size()}, self.h), nb::rv_policy::reference);
        },
        "tensor"_a, "plane"_a,
        nb::sig("def state_view(self, tensor: int, plane: int) "
                "-> numpy.typing.NDArray[numpy.float32] | None"),
        "One state plane of a parameter where it lies, as a 1-D float32 NumPy array that shares "
        "memory and keeps the optimizer alive, or None if not all of it is in host memory. Updates "
        "write it.");
    optimizer.def("factors", &BoundOptimizer::factors, "tensor"_a,
                  "How many float32 values of adafactor's parameter number ``tensor`` has: one for "
                  "each row and column of its last two dimensions, rows of all first, or of each "
                  "element if it has one dimension or none. 0 with another optimizer.");
    optimizer.def("read_factors", &BoundOptimizer::read_factors, "tensor"_a, "first"_a, "out"_a,
                  nb::sig("def read_factors(self, tensor: int, first: int, out: object) -> None"),
                  "As read_state(), of these values.");
    optimizer.def("write_factors", &BoundOptimizer::write_factors, "tensor"_a, "first"_a,
                  "values"_a,
                  nb::sig("def write_factors(self, tensor: int, first: int, values: object) "
                          "-> None"),
                  "As write_state(), of these values.");
    optimizer.def("read_masters", &BoundOptimizer::read_masters, "tensor"_a, "first"_a, "out"_a,
                  nb::sig("def read_masters(self, tensor: int, first: int, out: object) -> None"),
                  "Copies the float32 masters from element ``first`` on into ``out``, a writable "
                  "float32 array: the parameter itself, or a bfloat16 parameter and its residue "
                  "joined. Waits for the update.");
    optimizer.def("read_average", &BoundOptimizer::read_average, "tensor"_a, "first"_a, "out"_a,
                  nb::sig("def read_average(self, tensor: int, first: int, out: object) -> None"),
                  "As read_masters(), of the parameter's running average. RuntimeError if none is "
                  "kept or it has not taken up any weights yet.");
    optimizer.def("write_average", &BoundOptimizer::write_average, "tensor"_a, "first"_a,
                  "values"_a,
                  nb::sig("def write_average(self, tensor: int, first: int, values: object) "
                          "-> None"),
                  "As write_state(), of that average: for loading a checkpoint, with set_steps().");
    optimizer.def("reset_residue", &BoundOptimizer::reset_residue, "tensor"_a,
                  "Call it after you changed the values of a bfloat16 parameter: they are its "
                  "masters now. A float32 parameter needs nothing.");
    optimizer.def("read_residue", &BoundOptimizer::read_residue, "tensor"_a, "first"_a, "out"_a,
                  nb::sig("def read_residue(self, tensor: int, first: int, out: object) -> None"),
                  "As read_state(), of a bfloat16 parameter's residue: int16, the low half of the "
                  "float32 master's bits (master = parameter bits * 65536 + residue).");
    optimizer.def("write_residue", &BoundOptimizer::write_residue, "tensor"_a, "first"_a,
                  "values"_a,
                  nb::sig("def write_residue(self, tensor: int, first: int, values: object) "
                          "-> None"),
                  "As write_state(), of a bfloat16 parameter's residue (int16).");
}

void bind_report(nb::module_& module) {
    nb::class_<offload::StepReport>(module, "StepReport", "What begin_step() knows of its step.")
        .def_ro("applied", &offload::StepReport::applied, "False: the step was skipped.")
        .def_ro(
            "norm", &offload::StepReport::norm,
            "Global 2-norm of the scaled gradients, before clipping; None if nothing needed it.")
        .def_ro("nonfinite", &offload::StepReport::nonfinite,
                "Gradient elements that are infinite or NaN; 0 if nothing needed to look.")
        .def_ro("nonfinite_tensor", &offload::StepReport::nonfinite_tensor,
                "Name of the first parameter with one, \"\" if none.")
        .def("__repr__", [](const offload::StepReport& report) {
            return fmt::format(
                "StepReport(applied={}, norm={}, nonfinite={}, nonfinite_tensor='{}')",
                report.applied ? "True" : "False",
                report.norm ? fmt::format("{}", *report.norm) : "None", report.nonfinite,
                report.nonfinite_tensor);
        });
}

}  // namespace

void bind_optimizer(nb::module_& module) {
    bind_report(module);
    OptimizerClass optimizer(module, "TensorOptimizer", nb::is_weak_referenceable(),
                             R"(An optimizer over arrays that stay where they are.

Its own state (moments, residues) lies in host memory and, if that is too small, on a drive. Where it
lies never changes a bit of the result, nor do threads, chunk size or instruction set.

A step: give_gradient() for every parameter that has one, begin_step(), wait(). Or streamed:
begin_streamed_step(), gradients as they come, end_gradients(), wait(). Gradients are read and
parameters written until wait() returns, or wait_for() of that tensor: leave both alone till then.
Parameters are numbered from 0 in the order given.

A float32 parameter is its own master; for a bfloat16 one the optimizer keeps the residue that makes it
an exact float32 master.

Arrays of any framework pass by DLPack or the buffer protocol, without copies: on the CPU, C-contiguous.

An object works in the process that made it: in a forked child every call is a RuntimeError.)");
    bind_construction(optimizer);
    bind_settings(optimizer);
    bind_gradients(optimizer);
    bind_steps(optimizer);
    bind_commits(optimizer);
    bind_state(optimizer);
}

}  // namespace spillway::integrations
