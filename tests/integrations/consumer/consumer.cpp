// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <iostream>
#include <vector>

#include "offload/tensor_optimizer.h"

int main() {
    std::vector<float> weights(3, 2.0f);
    const std::vector<float> gradient(3, 1.0f);
    spillway::cpu_optim::SgdHyperParameters sgd;
    sgd.learning_rate = 0.5;
    spillway::offload::TensorOptimizerOptions options;
    options.host_bytes = std::size_t{64} << 20;
    spillway::offload::TensorOptimizer optimizer(
        {{.name = "w", .shape = {3}, .data = weights.data()}}, {sgd}, options);
    optimizer.give_gradient(0, {gradient.data()});
    (void)optimizer.begin_step({});
    optimizer.wait();
    std::cout << "weights " << weights[0] << ' ' << weights[2] << '\n';
}
