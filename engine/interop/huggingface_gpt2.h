// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/interop/safetensors_reader.h"
#include "engine/interop/tensor_dtype.h"
#include "engine/model/gpt2_config.h"
#include "offload/element_order.h"

namespace spillway::engine {

/// Names in a Hugging Face folder.
inline constexpr const char* huggingface_config_name = "config.json";
inline constexpr const char* huggingface_weights_name = "model.safetensors";

/// The text of config.json for GPT2LMHeadModel. `dtype` is that of the weights: f32 or bf16.
[[nodiscard]] std::string huggingface_gpt2_config(const Gpt2Config& config, TensorDtype dtype);

/// The inverse, for any GPT-2 that computes what ours does. Throws std::runtime_error naming the
/// key whose value asks for something else (another activation, untied embedding ...) or is
/// missing.
[[nodiscard]] Gpt2Config parse_huggingface_gpt2_config(const std::string& json);

/// Calls the visitor with all elements of one tensor, in order, in pieces.
using TensorPieces = std::function<void(std::uint64_t first, std::span<const float> values)>;
using VisitTensor = std::function<void(offload::TensorId tensor, const TensorPieces& visit)>;

struct ExportOptions {
    TensorDtype dtype = TensorDtype::f32;  ///< or bf16: the bf16 working weights of the run
    /// Memory for turning matrices around, on top of the visitor's; small values cost time only.
    std::size_t buffer_bytes = std::size_t{64} << 20;
};

struct ExportSummary {
    std::uint64_t tensors = 0;
    std::uint64_t parameters = 0;
    std::uint64_t file_bytes = 0;
};

/// Writes config.json and model.safetensors into `folder`, which must be missing or empty (what a
/// killed export left there is replaced). Hugging Face's Conv1D keeps matrices as [inputs,
/// outputs]: they are turned around panel by panel. config.json gets its name last: a folder that
/// has one is whole. Throws std::runtime_error, std::system_error; then neither file is there.
ExportSummary export_huggingface_gpt2(const Gpt2Config& config, const VisitTensor& visit,
                                      const std::filesystem::path& folder,
                                      const ExportOptions& options);

/// Throws std::runtime_error naming `folder` if export_huggingface_gpt2() would refuse it.
void check_export_folder(const std::filesystem::path& folder);

/// A GPT-2 in a Hugging Face folder, its tensors read as ours: same order, matrices [outputs,
/// inputs]. Names with and without "transformer." are known, masks and a tied lm_head are passed
/// over; a missing or unknown tensor or a wrong shape is a std::runtime_error that names it.
/// Thread-safe.
class HuggingfaceGpt2 {
  public:
    explicit HuggingfaceGpt2(const std::filesystem::path& folder);

    [[nodiscard]] const Gpt2Config& config() const noexcept { return config_; }
    [[nodiscard]] std::span<const offload::TensorSpec> tensors() const noexcept { return specs_; }

    /// All elements of one tensor; out.size() must be its elements(). Takes 1 MiB beside `out`.
    void read_tensor(offload::TensorId tensor, std::span<float> out) const;

  private:
    void match_tensors();

    std::filesystem::path folder_;
    Gpt2Config config_;
    std::vector<offload::TensorSpec> specs_;
    SafetensorsReader reader_;
    std::vector<const SafetensorsTensor*> stored_;  ///< per tensor of specs_
};

}  // namespace spillway::engine
