// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/product.h"

#include <cblas.h>

namespace spillway::engine {
namespace {

// Measured on Zen 3 with OpenBLAS 0.3.21: from 192 columns on the rate is flat (within the noise of
// 5 %), and small blocks keep many threads busy on small models.
constexpr std::size_t widest_result_block = 256;
constexpr std::size_t widest_gradient_rows = 192;
constexpr std::size_t widest_gradient_columns = 384;
/// Longer sums are cut; a BLAS cuts them at a few hundred anyway.
constexpr std::size_t longest_sum = 4096;
/// Rows of a BLAS kernel's register tile: cutting inside one would waste part of it.
constexpr std::size_t edge = 16;

/// [0, extent) in equal parts of at most `widest`, on multiples of `edge`; the last may be shorter.
class Cut {
  public:
    Cut(std::size_t extent, std::size_t widest) : extent_(extent) {
        const std::size_t parts = (extent + widest - 1) / widest;
        width_ = ((extent + parts - 1) / parts + edge - 1) / edge * edge;
        parts_ = (extent + width_ - 1) / width_;
    }
    [[nodiscard]] std::size_t parts() const { return parts_; }
    [[nodiscard]] std::size_t first(std::size_t part) const { return part * width_; }
    [[nodiscard]] std::size_t width(std::size_t part) const {
        return std::min(width_, extent_ - first(part));
    }

  private:
    std::size_t extent_, width_, parts_;
};

blasint blas_int(std::size_t value) {
    return static_cast<blasint>(value);
}

/// Both products that give one row a token: operand [tokens, sum] times a matrix whose element
/// (sum, column) lies at sum * sum_stride + column * column_stride; one of the strides is 1.
struct TokenProduct {
    const float* operand;
    const float* weight;
    CBLAS_TRANSPOSE transpose;
    std::size_t weight_stride;
    std::size_t columns, sum;
    float* result;
};

void multiply_block(const TokenProduct& task, const ResultBlock& block, const Cut& sums) {
    float* result = task.result + block.first_row * task.columns + block.first_column;
    for (std::size_t part = 0; part < sums.parts(); ++part) {
        const std::size_t first = sums.first(part);
        const float* weight = task.transpose == CblasTrans
                                  ? task.weight + block.first_column * task.weight_stride + first
                                  : task.weight + first * task.weight_stride + block.first_column;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, task.transpose, blas_int(block.rows),
                    blas_int(block.columns), blas_int(sums.width(part)), 1.0f,
                    task.operand + block.first_row * task.sum + first, blas_int(task.sum), weight,
                    blas_int(task.weight_stride), part == 0 ? 0.0f : 1.0f, result,
                    blas_int(task.columns));
    }
}

void multiply_tokens(ComputePool& pool, const TokenRows& rows, const TokenProduct& task,
                     const BlockEpilogue& epilogue) {
    const Cut columns(task.columns, widest_result_block);
    const Cut sums(task.sum, longest_sum);
    pool.for_each(rows.blocks() * columns.parts(), [&](std::size_t index) {
        const auto tokens = rows.block(index % rows.blocks());
        const std::size_t part = index / rows.blocks();
        const ResultBlock block{tokens.first_row, tokens.rows, columns.first(part),
                                columns.width(part)};
        multiply_block(task, block, sums);
        if (epilogue)
            epilogue(block);
    });
}

}  // namespace

void product(ComputePool& pool, const TokenRows& rows, const float* input, const float* weight,
             const WeightShape& shape, float* result, const BlockEpilogue& epilogue) {
    multiply_tokens(pool, rows,
                    {input, weight, CblasTrans, shape.inputs, shape.outputs, shape.inputs, result},
                    epilogue);
}

void product_input_gradient(ComputePool& pool, const TokenRows& rows, const float* gradient,
                            const float* weight, const WeightShape& shape, float* input_gradient,
                            const BlockEpilogue& epilogue) {
    multiply_tokens(
        pool, rows,
        {gradient, weight, CblasNoTrans, shape.inputs, shape.inputs, shape.outputs, input_gradient},
        epilogue);
}

void product_weight_gradient(ComputePool& pool, const TokenRows& rows, const float* gradient,
                             const float* input, const WeightShape& shape,
                             Contribution contribution, float* weight_gradient) {
    const Cut outputs(shape.outputs, widest_gradient_rows);
    const Cut inputs(shape.inputs, widest_gradient_columns);
    pool.for_each(outputs.parts() * inputs.parts(), [&](std::size_t index) {
        const std::size_t output = outputs.first(index / inputs.parts());
        const std::size_t column = inputs.first(index % inputs.parts());
        for (std::size_t i = 0; i < rows.blocks(); ++i) {
            const auto tokens = rows.block(i);
            const bool first = i == 0 && contribution == Contribution::first;
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans,
                        blas_int(outputs.width(index / inputs.parts())),
                        blas_int(inputs.width(index % inputs.parts())), blas_int(tokens.rows), 1.0f,
                        gradient + tokens.first_row * shape.outputs + output,
                        blas_int(shape.outputs), input + tokens.first_row * shape.inputs + column,
                        blas_int(shape.inputs), first ? 0.0f : 1.0f,
                        weight_gradient + output * shape.inputs + column, blas_int(shape.inputs));
        }
    });
}

}  // namespace spillway::engine
