// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/factor_layout.h"

namespace spillway::offload {

FactorLayout::FactorLayout(const ElementOrder& order) {
    tensors_.reserve(order.tensors().size());
    for (const auto& spec : order.tensors()) {
        const auto elements = spec.elements();
        FactoredTensor tensor{
            .first_value = values_, .first_factor = factors_, .first_matrix = matrices_};
        if (spec.shape.size() < 2) {
            tensor.columns = elements;
        } else if (elements != 0) {
            tensor.columns = spec.shape.back();
            tensor.rows = spec.shape[spec.shape.size() - 2];
            tensor.matrices = elements / (tensor.rows * tensor.columns);
            factors_ += tensor.values();
        }
        values_ += tensor.values();
        matrices_ += tensor.matrices;
        tensors_.push_back(tensor);
    }
}

std::uint64_t factor_values(const ElementOrder& order, SecondMoments moments) {
    return moments == SecondMoments::factored ? FactorLayout(order).values() : 0;
}

}  // namespace spillway::offload
