// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/offload/tensor_script.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <iterator>

#include "cpu_optim/isa.h"

namespace spillway::testing {
namespace {

using offload::ParameterType;
using offload::TensorId;
using offload::TensorOptimizer;

constexpr TensorId embedding = 0;
constexpr TensorId norm = 1;
constexpr TensorId projection = 3;
constexpr TensorId rare = 6;
constexpr TensorId head = 7;

std::vector<float> written_state(std::size_t elements) {
    std::vector<float> values(elements);
    for (std::size_t i = 0; i < elements; ++i)
        values[i] = 1.0f / static_cast<float>(1 + i % 100);
    return values;
}

std::vector<std::int16_t> written_residues(std::size_t elements) {
    std::vector<std::int16_t> values(elements);
    for (std::size_t i = 0; i < elements; ++i)
        values[i] = static_cast<std::int16_t>(static_cast<int>(i * 37 % 2000) - 1000);
    return values;
}

void edit_weights(ClientTensorValues& values) {
    for (std::size_t i = 0; i < values.bf16.size(); ++i)
        values.bf16[i] = static_cast<std::uint16_t>(0x3F80U + i % 50U);
}

}  // namespace

ClientSnapshot snapshot(TensorOptimizer& optimizer, const std::vector<ClientTensorValues>& model) {
    ClientSnapshot all;
    for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
        const auto count = model[tensor].elements();
        std::vector<float> values(count);
        for (std::size_t plane = 0; plane < optimizer.state_planes(); ++plane) {
            optimizer.read_state(tensor, plane, 0, values);
            std::ranges::transform(values, std::back_inserter(all.state),
                                   [](float value) { return std::bit_cast<std::uint32_t>(value); });
        }
        if (model[tensor].type == ParameterType::bf16) {
            std::vector<std::int16_t> residues(count);
            optimizer.read_residue(tensor, 0, residues);
            all.residues.insert(all.residues.end(), residues.begin(), residues.end());
        }
        all.steps.push_back(optimizer.steps(tensor));
    }
    all.weights = bits_of(model);
    return all;
}

TensorScript::TensorScript() : start_(client_model()) {
    start_[norm].gradient_every = 3;
    gradients_.resize(iterations + 1);
    for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration) {
        for (std::size_t index = 0; index < start_.size(); ++index)
            gradients_[iteration].push_back(gradient_bytes_of(start_[index], index, iteration));
    }
}

std::vector<cpu_optim::HyperParameters> TensorScript::groups() {
    return {cpu_optim::AdamHyperParameters{.learning_rate = 0.01},
            cpu_optim::AdamHyperParameters{.learning_rate = 0.005, .weight_decay = 0}};
}

std::vector<ClientSnapshot> TensorScript::uninterrupted() const {
    auto model = start_;
    offload::TensorOptimizerOptions options;
    options.host_bytes = std::size_t{64} << 20;
    options.isa = cpu_optim::supported_isas().back();
    TensorOptimizer optimizer(parameters_of(model), groups(), options);
    std::vector<ClientSnapshot> all{snapshot(optimizer, model)};
    for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration) {
        iterate(optimizer, model, iteration);
        all.push_back(snapshot(optimizer, model));
    }
    return all;
}

void TensorScript::give_gradient(TensorOptimizer& optimizer, TensorId tensor,
                                 std::uint64_t iteration) const {
    if (start_[tensor].has_gradient(iteration))
        optimizer.give_gradient(
            tensor, {gradients_[iteration][tensor].data(), start_[tensor].gradient_type});
}

void TensorScript::give_gradients(TensorOptimizer& optimizer, std::uint64_t iteration) const {
    for (TensorId tensor = 0; tensor < start_.size(); ++tensor)
        give_gradient(optimizer, tensor, iteration);
}

void TensorScript::iterate(TensorOptimizer& optimizer, std::vector<ClientTensorValues>& model,
                           std::uint64_t iteration) const {
    give_gradients(optimizer, iteration);
    optimizer.begin_step({.gradient_scale = 0.75, .max_norm = 100.0});
    optimizer.wait();
    edit(optimizer, model, iteration);
}

/// Whole tensors, parts that cross tiles, and tensors that see no gradient for a while after.
void TensorScript::edit(TensorOptimizer& optimizer, std::vector<ClientTensorValues>& model,
                        std::uint64_t iteration) const {
    if (iteration == 1) {
        optimizer.write_state(embedding, 1, 100, written_state(17000));
        optimizer.write_residue(head, 0, written_residues(model[head].elements()));
    } else if (iteration == 3) {
        edit_weights(model[projection]);
        optimizer.reset_residue(projection);
        edit_weights(model[norm]);
        optimizer.reset_residue(norm);
    } else if (iteration == 4) {
        optimizer.set_steps(rare, 11);
        optimizer.write_state(head, 0, 300001, written_state(40000));
        optimizer.write_residue(projection, 5, written_residues(16380));
    }
}

offload::TensorCommit TensorScript::commit_after(std::uint64_t iteration) {
    return {iteration, std::string(1000 + 100 * iteration, 'a')};
}

TensorScript::Outcome TensorScript::run(TensorOptimizer& optimizer,
                                        std::vector<ClientTensorValues>& model,
                                        std::uint64_t first) const {
    Outcome outcome;
    std::optional<std::uint64_t> asked;
    try {
        for (auto iteration = first; iteration <= iterations; ++iteration) {
            if (iteration != 0)
                iterate(optimizer, model, iteration);
            outcome.durable = asked;  // a step waits for the commit before it
            if (commits_after(iteration)) {
                optimizer.begin_commit(commit_after(iteration));
                asked = iteration;
            }
        }
        optimizer.wait();
        outcome.durable = asked;
    } catch (const std::exception& error) {
        outcome.error = error.what();
    }
    return outcome;
}

}  // namespace spillway::testing
