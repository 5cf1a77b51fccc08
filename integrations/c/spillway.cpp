// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/c/spillway.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include <fmt/format.h>

#include "integrations/c/detail/handle.h"
#include "integrations/c/detail/sized_struct.h"
#include "integrations/c/detail/translate.h"
#include "integrations/cpp/tensor_export.h"
#include "offload/commit_table.h"

using spillway::c_face::require;
using spillway::c_face::with_handle;
using spillway::c_face::without_handle;

namespace {

/// NULL is fine where there is nothing to read or write.
void require_elements(const void* pointer, std::uint64_t elements, const char* name) {
    if (elements != 0)
        require(pointer, name);
}

void check_span(const spillway_optimizer& optimizer, std::uint32_t tensor, std::uint64_t first,
                const void* values, std::uint64_t elements) {
    const auto all = optimizer.elements_of(tensor);
    if (first > all || elements > all - first)
        throw std::invalid_argument(
            fmt::format("first is {} and elements is {}, but tensor {} ('{}') has {} elements",
                        first, elements, tensor, optimizer.core.parameters()[tensor].name, all));
    require_elements(values, elements, "values");
}

}  // namespace

const char* spillway_last_error(const spillway_optimizer* optimizer) {
    if (optimizer == nullptr)
        return spillway::c_face::thread_text();
    if (!spillway::c_face::is_of_this_process(*optimizer))
        return "the optimizer belongs to the process that forked this one; make one here";
    return optimizer->failures.of_this_thread();
}

spillway_status spillway_optimizer_create(const spillway_parameter* parameters,
                                          uint64_t parameter_count, const spillway_group* groups,
                                          uint64_t group_count, const spillway_options* options,
                                          spillway_optimizer** optimizer) {
    return without_handle([&] {
        require(optimizer, "optimizer");
        *optimizer = nullptr;
        *optimizer = std::make_unique<spillway_optimizer>(
                         spillway::c_face::parameters_of(parameters, parameter_count),
                         spillway::c_face::groups_of(groups, group_count),
                         spillway::c_face::options_of(options))
                         .release();
    });
}

spillway_status spillway_optimizer_destroy(spillway_optimizer* optimizer) {
    if (optimizer == nullptr)
        return SPILLWAY_OK;
    // A child has the memory but none of the threads, and waiting for them would never end.
    if (!spillway::c_face::is_of_this_process(*optimizer))
        return SPILLWAY_FORKED_CHILD;
    return without_handle([&] { delete optimizer; });
}

spillway_status spillway_tensor_count(const spillway_optimizer* optimizer, uint64_t* count) {
    return with_handle(optimizer, [&](const spillway_optimizer& self) {
        require(count, "count");
        *count = self.elements.size();
    });
}

spillway_status spillway_find_tensor(const spillway_optimizer* optimizer, const char* name,
                                     uint32_t* tensor) {
    return with_handle(optimizer, [&](const spillway_optimizer& self) {
        require(name, "name");
        require(tensor, "tensor");
        const auto found = self.tensors.find(name);
        if (found == self.tensors.end())
            throw std::invalid_argument(fmt::format("name is '{}'; no tensor has it", name));
        *tensor = found->second;
    });
}

spillway_status spillway_state_planes(const spillway_optimizer* optimizer, uint64_t* planes) {
    return with_handle(optimizer, [&](const spillway_optimizer& self) {
        require(planes, "planes");
        *planes = self.core.state_planes();
    });
}

spillway_status spillway_io_backend_name(const spillway_optimizer* optimizer, const char** name) {
    return with_handle(optimizer, [&](const spillway_optimizer& self) {
        require(name, "name");
        *name = self.backend_name.c_str();
    });
}

spillway_status spillway_get_statistics(const spillway_optimizer* optimizer,
                                        spillway_statistics* statistics) {
    return with_handle(optimizer, [&](const spillway_optimizer& self) {
        require(statistics, "statistics");
        spillway::c_face::check_struct_bytes<spillway_statistics>(statistics->struct_bytes,
                                                                  "statistics");
        spillway::c_face::write_struct(statistics, statistics->struct_bytes,
                                       spillway::c_face::statistics_of(self.core.statistics()),
                                       "statistics");
    });
}

spillway_status spillway_set_group(spillway_optimizer* optimizer, uint32_t group,
                                   const spillway_group* hyper) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        std::visit([&](const auto& kind) { self.core.set_group(group, kind); },
                   spillway::c_face::group_of(hyper, "hyper"));
    });
}

spillway_status spillway_rebind(spillway_optimizer* optimizer, uint32_t tensor, void* data) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        require_elements(data, self.elements_of(tensor), "data");
        self.core.rebind(tensor, data);
    });
}

spillway_status spillway_give_gradient(spillway_optimizer* optimizer, uint32_t tensor,
                                       const void* data, uint64_t elements,
                                       spillway_gradient_type type) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        const auto needed = self.elements_of(tensor);
        if (elements != needed)
            throw std::invalid_argument(fmt::format("elements is {}; tensor {} ('{}') has {}",
                                                    elements, tensor,
                                                    self.core.parameters()[tensor].name, needed));
        require_elements(data, elements, "data");
        self.core.give_gradient(tensor, {data, spillway::c_face::gradient_type_of(type)});
    });
}

spillway_status spillway_discard_gradients(spillway_optimizer* optimizer) {
    return with_handle(optimizer, [](spillway_optimizer& self) { self.core.discard_gradients(); });
}

spillway_status spillway_begin_step(spillway_optimizer* optimizer, const spillway_step_rule* rule,
                                    spillway_step_report* report) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        // All that can be refused comes before the step: afterwards it has happened.
        const auto translated = spillway::c_face::step_rule_of(rule);
        if (report != nullptr)
            spillway::c_face::check_struct_bytes<spillway_step_report>(report->struct_bytes,
                                                                       "report");
        auto from = self.core.begin_step(translated);
        self.nonfinite_tensor = std::move(from.nonfinite_tensor);
        if (report == nullptr)
            return;
        spillway_step_report to{};
        to.norm = from.norm.value_or(0);
        to.nonfinite = from.nonfinite;
        to.nonfinite_tensor = self.nonfinite_tensor.c_str();
        to.applied = from.applied ? 1 : 0;
        to.has_norm = from.norm ? 1 : 0;
        spillway::c_face::write_struct(report, report->struct_bytes, to, "report");
    });
}

spillway_status spillway_begin_streamed_step(spillway_optimizer* optimizer, double gradient_scale) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        if (!std::isfinite(gradient_scale))
            throw std::invalid_argument(
                fmt::format("gradient_scale is {} and must be finite", gradient_scale));
        self.core.begin_streamed_step(gradient_scale);
    });
}

spillway_status spillway_end_gradients(spillway_optimizer* optimizer) {
    return with_handle(optimizer, [](spillway_optimizer& self) { self.core.end_gradients(); });
}

spillway_status spillway_wait_for(spillway_optimizer* optimizer, uint32_t tensor) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        (void)self.elements_of(tensor);
        self.core.wait_for(tensor);
    });
}

spillway_status spillway_wait(spillway_optimizer* optimizer) {
    return with_handle(optimizer, [](spillway_optimizer& self) { self.core.wait(); });
}

spillway_status spillway_wait_limited(spillway_optimizer* optimizer, uint64_t milliseconds,
                                      int32_t* finished) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        require(finished, "finished");
        constexpr std::chrono::milliseconds day = std::chrono::hours{24};
        const auto limit = std::min<std::uint64_t>(milliseconds, day.count());
        *finished = self.core.wait(std::chrono::milliseconds{limit}) ? 1 : 0;
    });
}

spillway_status spillway_begin_commit(spillway_optimizer* optimizer, uint64_t iteration,
                                      const void* client_state, uint64_t client_state_bytes) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        require_elements(client_state, client_state_bytes, "client_state");
        constexpr auto most = spillway::offload::CommitTable::client_state_limit_bytes;
        if (client_state_bytes > most)
            throw std::invalid_argument(
                fmt::format("client_state_bytes is {}; at most {}", client_state_bytes, most));
        spillway::offload::TensorCommit note;
        note.iteration = iteration;
        if (client_state_bytes != 0)
            note.client_state.assign(static_cast<const char*>(client_state), client_state_bytes);
        self.core.begin_commit(note);
    });
}

spillway_status spillway_recover(spillway_optimizer* optimizer, int32_t* found,
                                 uint64_t* iteration) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        require(found, "found");
        require(iteration, "iteration");
        auto commit = self.core.recover();
        *found = commit ? 1 : 0;
        if (!commit)
            return;
        *iteration = commit->iteration;
        self.recovered_client_state = std::move(commit->client_state);
    });
}

spillway_status spillway_recovered_client_state(const spillway_optimizer* optimizer,
                                                const void** client_state,
                                                uint64_t* client_state_bytes) {
    return with_handle(optimizer, [&](const spillway_optimizer& self) {
        require(client_state, "client_state");
        require(client_state_bytes, "client_state_bytes");
        *client_state = self.recovered_client_state.data();
        *client_state_bytes = self.recovered_client_state.size();
    });
}

spillway_status spillway_steps(const spillway_optimizer* optimizer, uint32_t tensor,
                               uint64_t* steps) {
    return with_handle(optimizer, [&](const spillway_optimizer& self) {
        require(steps, "steps");
        (void)self.elements_of(tensor);
        *steps = self.core.steps(tensor);
    });
}

spillway_status spillway_set_steps(spillway_optimizer* optimizer, uint32_t tensor, uint64_t steps) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        (void)self.elements_of(tensor);
        self.core.set_steps(tensor, steps);
    });
}

spillway_status spillway_read_state(spillway_optimizer* optimizer, uint32_t tensor, uint64_t plane,
                                    uint64_t first, float* values, uint64_t elements) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        check_span(self, tensor, first, values, elements);
        self.core.read_state(tensor, plane, first, {values, elements});
    });
}

spillway_status spillway_write_state(spillway_optimizer* optimizer, uint32_t tensor, uint64_t plane,
                                     uint64_t first, const float* values, uint64_t elements) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        check_span(self, tensor, first, values, elements);
        self.core.write_state(tensor, plane, first, {values, elements});
    });
}

spillway_status spillway_read_masters(spillway_optimizer* optimizer, uint32_t tensor,
                                      uint64_t first, float* values, uint64_t elements) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        check_span(self, tensor, first, values, elements);
        self.core.read_masters(tensor, first, {values, elements});
    });
}

spillway_status spillway_read_average(spillway_optimizer* optimizer, uint32_t tensor,
                                      uint64_t first, float* values, uint64_t elements) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        check_span(self, tensor, first, values, elements);
        self.core.read_average(tensor, first, {values, elements});
    });
}

spillway_status spillway_write_average(spillway_optimizer* optimizer, uint32_t tensor,
                                       uint64_t first, const float* values, uint64_t elements) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        check_span(self, tensor, first, values, elements);
        self.core.write_average(tensor, first, {values, elements});
    });
}

spillway_status spillway_factors(const spillway_optimizer* optimizer, uint32_t tensor,
                                 uint64_t* count) {
    return with_handle(optimizer, [&](const spillway_optimizer& self) {
        require(count, "count");
        static_cast<void>(self.elements_of(tensor));
        *count = self.core.factors(tensor);
    });
}

spillway_status spillway_read_factors(spillway_optimizer* optimizer, uint32_t tensor,
                                      uint64_t first, float* values, uint64_t count) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        static_cast<void>(self.elements_of(tensor));
        require_elements(values, count, "values");
        self.core.read_factors(tensor, first, {values, count});
    });
}

spillway_status spillway_write_factors(spillway_optimizer* optimizer, uint32_t tensor,
                                       uint64_t first, const float* values, uint64_t count) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        static_cast<void>(self.elements_of(tensor));
        require_elements(values, count, "values");
        self.core.write_factors(tensor, first, {values, count});
    });
}

spillway_status spillway_read_residue(spillway_optimizer* optimizer, uint32_t tensor,
                                      uint64_t first, int16_t* values, uint64_t elements) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        check_span(self, tensor, first, values, elements);
        self.core.read_residue(tensor, first, {values, elements});
    });
}

spillway_status spillway_write_residue(spillway_optimizer* optimizer, uint32_t tensor,
                                       uint64_t first, const int16_t* values, uint64_t elements) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        check_span(self, tensor, first, values, elements);
        self.core.write_residue(tensor, first, {values, elements});
    });
}

spillway_status spillway_state_view(spillway_optimizer* optimizer, uint32_t tensor, uint64_t plane,
                                    float** values, uint64_t* elements) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        require(values, "values");
        require(elements, "elements");
        (void)self.elements_of(tensor);
        const auto view = self.core.state_view(tensor, plane);
        *values = view.empty() ? nullptr : view.data();
        *elements = view.size();
    });
}

spillway_status spillway_reset_residue(spillway_optimizer* optimizer, uint32_t tensor) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        (void)self.elements_of(tensor);
        self.core.reset_residue(tensor);
    });
}

spillway_status spillway_export_masters(spillway_optimizer* optimizer, const char* path,
                                        spillway_export_type type) {
    return with_handle(optimizer, [&](spillway_optimizer& self) {
        require(path, "path");
        spillway::integrations::export_masters(self.core, path,
                                               spillway::c_face::export_dtype_of(type));
    });
}
