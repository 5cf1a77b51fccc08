// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "cpu_optim/isa.h"
#include "cpu_optim/nadam_momentum.h"
#include "engine/cli/units.h"
#include "engine/measure/machine_memory.h"
#include "integrations/python/bound_optimizer.h"
#include "integrations/python/errors.h"
#include "nvme/io_backend.h"
#include "offload/average_rule.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

std::uint64_t available_host_bytes() {
    const auto available = spillway::engine::available_memory().bytes;
    return available - std::min(available, spillway::engine::memory_margin(available));
}

std::vector<std::string> io_backends() {
    const auto names = spillway::nvme::backend_names();
    return {names.begin(), names.end()};
}

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const auto isa : spillway::cpu_optim::supported_isas())
        names.emplace_back(spillway::cpu_optim::isa_name(isa));
    return names;
}

}  // namespace

NB_MODULE(_core, module) {
    // Objects in reference cycles outlive the interpreter; their owners have been told to drain.
    nb::set_leak_warnings(false);
    module.doc() = "The native part of the package ``spillway``.";
    module.attr("__version__") = SPILLWAY_VERSION;
    spillway::integrations::register_errors(module);
    spillway::integrations::bind_optimizer(module);
    module.def("parse_bytes", &spillway::engine::parse_size_bytes, "text"_a,
               R"(A size in bytes: "4GiB", "64MB", "1.5GiB", "4096".

Raises:
    ValueError: for any other text; it says what is accepted.)");
    module.def("available_host_bytes", &available_host_bytes,
               R"(What a budget that is not given defaults to, in bytes.

The least of the machine's and the control groups' free memory, less a margin: a tenth, at least
256 MiB, at most 4 GiB.)");
    module.def("nadam_momentum_product", &spillway::cpu_optim::nadam_momentum_product, "beta1"_a,
               "momentum_decay"_a, "step"_a,
               "The product of NAdam's mu over the steps 1 to ``step``, as the updates take it.");
    module.def(
        "average_interval",
        [](const std::string& text) {
            const auto rule = spillway::offload::parse_average(text);
            return rule ? rule->every : std::uint64_t{0};
        },
        "text"_a,
        R"(After how many updates an average "ema:DECAY" or "swa:EVERY" takes up weights; 0 for "off".

Raises:
    ValueError: for any other text; it says what is accepted.)");
    module.def("io_backends", &io_backends,
               "Names of the ways to read and write files; whether one works here its use tells.");
    module.def(
        "isas", &isas,
        "Instruction sets that the kernels have and this machine supports, narrowest first.");
}
