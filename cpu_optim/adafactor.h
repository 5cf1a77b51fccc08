// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/isa.h"
#include "cpu_optim/layerwise.h"
#include "cpu_optim/state_format.h"

/// Adafactor (Shazeer & Stern 2018, arXiv:1804.04235): of a matrix it keeps no second moment but
/// one number per row and one per column, and the length of a step depends on the whole tensor.
///
/// A matrix takes three passes over its elements: sum_squares(), then update_factors() once,
/// sum_updates(), then adafactor_step() once, apply_factored(). A vector keeps its second moment
/// whole and takes two: prepare_variance(), then adafactor_step() once, apply_variance(). As torch:
/// of a tensor of more than two dimensions, the last two are matrices of their own, whose sums
/// together give the one step of the tensor; a tensor of one dimension or none is a vector.
///
/// Sums are taken in double and in bands that the caller fixes, so that threads may take a band
/// each: a band's runs are handed in from its start to its end, cut anywhere, and the bands' sums
/// are added in order. So a tensor's new values have the same bits on every Isa, for every number
/// of threads and for every way of cutting a band in runs.
namespace spillway::cpu_optim {

/// Of fp32: what an epsilon1 that is not given is.
inline constexpr double adafactor_default_epsilon1 = 0x1p-23;

/// With the conventions of torch.optim.Adafactor, which differ from the paper's where said.
struct AdafactorHyperParameters {
    double learning_rate = 1e-2;  ///< the most that the relative step rho_t = 1 / sqrt(t) may be
    double beta2_decay = -0.8;    ///< beta2 at step t is 1 - t^beta2_decay; 0 or less
    /// Least sqrt(v), and least mean of the row factors; the paper adds it to squared gradients.
    /// Without a value that of torch for fp32, adafactor_default_epsilon1.
    std::optional<double> epsilon1 = std::nullopt;
    double epsilon2 = 1e-3;  ///< least root mean square of the weights a step is in proportion to
    double clip_threshold = 1;  ///< d: most root mean square of an update, 1 or more
    double weight_decay = 0;    ///< decoupled: w -= learning_rate * weight_decay * w; none at 0
    Objective objective = Objective::minimise;
};

/// Whether a tensor's second moment is kept whole or as factors of rows and columns.
enum class SecondMoment { whole, factored };

[[nodiscard]] OptimizerNeeds needs(const AdafactorHyperParameters& hyper,
                                   SecondMoment moment) noexcept;
/// "Adafactor": for messages.
[[nodiscard]] std::string_view optimizer_name(const AdafactorHyperParameters& hyper) noexcept;
/// Throws std::invalid_argument naming field, value and what is allowed.
void check(const AdafactorHyperParameters& hyper);
/// The same; factors are kept in fp32 alone.
void check(const AdafactorHyperParameters& hyper, StateFormat format);

struct AdafactorCoefficients {
    float gradient_scale;    ///< negative when the objective is maximised
    double one_minus_beta2;  ///< step^beta2_decay
    float least_variance;    ///< epsilon1 squared
    float least_row_mean;    ///< epsilon1
    Term decays;
    float decay;  ///< learning_rate * weight_decay
};
/// `step` and `gradient_scale` as for the elementwise optimizers. Throws as check().
[[nodiscard]] AdafactorCoefficients make_coefficients(const AdafactorHyperParameters& hyper,
                                                      std::uint64_t step, double gradient_scale);

/// Bands that suit a caller who has a whole tensor at hand: rows of a matrix, and elements of a
/// vector; the last band may have fewer.
inline constexpr std::size_t adafactor_band_rows = 256;
inline constexpr std::size_t adafactor_band_elements = std::size_t{1} << 20;

/// A sum of squares in double, in the making: element i of a vector, or of column i, is added to
/// lane i % 16, and the lanes pairwise at the end (8 + 8, 4 + 4, 2 + 2, 1 + 1).
struct LaneSum {
    std::array<double, 16> lanes{};
    [[nodiscard]] double total() const;
};

/// Adjacent elements of a row-major matrix. `run.state` is not used.
struct MatrixRun {
    std::size_t columns = 0;
    std::size_t first = 0;  ///< the run's first element in the matrix
    ElementwiseRun run;
};

/// What pass 1 makes of a band, all 0 at its start. A band that begins or ends within a row takes
/// what it has of it.
struct BandSums {
    double* row_squares = nullptr;     ///< of every row of the matrix; those that end here are set
    double* column_squares = nullptr;  ///< of columns, over the rows of the band in order
    LaneSum open_row;                  ///< of the row that the next run goes on with
    LaneSum weights;
    std::size_t first_column = 0;  ///< that column_squares has; 0 but for a band within one row
};

/// Pass 1 of a matrix: squares of gradients and weights. Throws as update_run().
void sum_squares(Isa isa, const AdafactorCoefficients& coefficients, const MatrixRun& run,
                 BandSums& sums);

/// The second moment of a matrix: of element (i, j) rows[i] * columns[j] / row_mean.
struct Factors {
    const float* rows = nullptr;
    const float* columns = nullptr;
    float row_mean = 1;
};
struct MatrixShape {
    std::size_t rows = 0;
    std::size_t columns = 0;
};
/// Moves the factors of a matrix, which start at 0, to the means of the squares that pass 1 found.
[[nodiscard]] Factors update_factors(const AdafactorCoefficients& coefficients,
                                     const MatrixShape& shape, const double* row_squares,
                                     const double* column_squares, float* rows, float* columns);

/// Pass 2 of a matrix: adds the squares of the updates of a band. Throws as update_run(); needs no
/// master.
void sum_updates(Isa isa, const AdafactorCoefficients& coefficients, const MatrixRun& run,
                 const Factors& factors, LaneSum& updates);

/// Pass 1 of a vector, elements [first, first + run.elements) of a band: updates state[0].
struct VectorSums {
    LaneSum weights;
    LaneSum updates;
};
void prepare_variance(Isa isa, const AdafactorCoefficients& coefficients, std::size_t first,
                      const ElementwiseRun& run, VectorSums& sums);

/// Of a whole tensor: the sums of its bands, added in order.
struct AdafactorSums {
    double weight_squares = 0;
    double update_squares = 0;
};
/// What an update of a tensor of `elements` is multiplied by: alpha_t / max(1, RMS(U_t) / d).
/// Throws std::invalid_argument if a sum is not finite (scan the gradients before pass 1) or no
/// float holds the step.
[[nodiscard]] float adafactor_step(const AdafactorHyperParameters& hyper, std::uint64_t step,
                                   std::size_t elements, const AdafactorSums& sums);

/// The last pass: moves the weights. Returns what update_run() returns; bit-identical for every way
/// of cutting. Throws as update_run().
[[nodiscard]] std::size_t apply_factored(Isa isa, const AdafactorCoefficients& coefficients,
                                         float step, const MatrixRun& run, const Factors& factors);
[[nodiscard]] std::size_t apply_variance(Isa isa, const AdafactorCoefficients& coefficients,
                                         float step, const ElementwiseRun& run);

}  // namespace spillway::cpu_optim
