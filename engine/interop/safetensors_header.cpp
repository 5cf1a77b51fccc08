// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/interop/safetensors_header.h"

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace spillway::engine {

namespace {

using nlohmann::json;

constexpr const char* metadata_key = "__metadata__";
/// Objects and arrays inside each other: root, tensor, shape.
constexpr int deepest_nesting = 3;
/// Names come from an untrusted file: an error shows so much of one.
constexpr std::size_t longest_shown_name = 80;

[[noreturn]] void fail(const std::string& what) {
    throw std::runtime_error(what);
}

std::string shown(std::string_view name) {
    std::string text;
    for (const char c : name.substr(0, longest_shown_name))
        text += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    return name.size() > longest_shown_name ? text + "..." : text;
}

/// The library keeps the last of two equal keys without a word; a file with two is refused instead.
class KeyGuard {
  public:
    bool operator()(int depth, json::parse_event_t event, json& parsed) {
        using Event = json::parse_event_t;
        if (depth >= deepest_nesting &&
            (event == Event::object_start || event == Event::array_start))
            fail("the header nests objects too deeply for a safetensors file");
        if (event == Event::object_start)
            keys_.emplace_back();
        else if (event == Event::object_end)
            keys_.pop_back();
        else if (event == Event::key && !keys_.back().insert(parsed.get<std::string>()).second)
            fail(fmt::format("the name '{}' comes twice in the header",
                             shown(parsed.get_ref<const std::string&>())));
        return true;
    }

  private:
    std::vector<std::set<std::string>> keys_;
};

json parse_json(std::string_view text) {
    if (text.empty() || text.front() != '{')
        fail("the header does not begin with '{'");
    KeyGuard guard;
    try {
        return json::parse(text, [&](int depth, json::parse_event_t event, json& parsed) {
            return guard(depth, event, parsed);
        });
    } catch (const json::exception& error) {
        fail(fmt::format("the header is not valid JSON ({})", error.what()));
    }
}

const json& member(const std::string& tensor, const json& value, const char* key) {
    const auto found = value.find(key);
    if (found == value.end())
        fail(fmt::format("tensor '{}' has no '{}'", shown(tensor), key));
    return *found;
}

std::vector<std::uint64_t> unsigned_list(const std::string& tensor, const json& value,
                                         const char* key) {
    const auto& list = member(tensor, value, key);
    if (!list.is_array())
        fail(fmt::format("'{}' of tensor '{}' is not a list", key, shown(tensor)));
    std::vector<std::uint64_t> numbers;
    numbers.reserve(list.size());
    for (const auto& number : list) {
        if (!number.is_number_unsigned())
            fail(fmt::format("'{}' of tensor '{}' holds {}, not an integer from 0 to 2^64 - 1", key,
                             shown(tensor), shown(number.dump())));
        numbers.push_back(number.get<std::uint64_t>());
    }
    return numbers;
}

/// Bytes of a tensor; nothing if they do not fit 64 bits. A zero anywhere in the shape makes 0
/// bytes, whatever stands beside it.
std::optional<std::uint64_t> size_of(TensorDtype dtype, const std::vector<std::uint64_t>& shape) {
    if (std::find(shape.begin(), shape.end(), 0u) != shape.end())
        return 0;
    std::uint64_t bytes = dtype_bytes(dtype);
    for (const auto length : shape) {
        if (__builtin_mul_overflow(bytes, length, &bytes))
            return std::nullopt;
    }
    return bytes;
}

void check_range(const SafetensorsTensor& tensor, std::uint64_t data_bytes) {
    if (tensor.begin_bytes > tensor.end_bytes)
        fail(fmt::format("tensor '{}' ends at byte {}, before it begins at {}", shown(tensor.name),
                         tensor.end_bytes, tensor.begin_bytes));
    if (tensor.end_bytes > data_bytes)
        fail(fmt::format("tensor '{}' ends at byte {} of the data, but the file holds only {}",
                         shown(tensor.name), tensor.end_bytes, data_bytes));
    const auto needed = size_of(tensor.dtype, tensor.shape);
    if (!needed)
        fail(fmt::format("tensor '{}' of type {} has a shape with more than 2^64 bytes",
                         shown(tensor.name), dtype_name(tensor.dtype)));
    if (*needed != tensor.size_bytes())
        fail(fmt::format("tensor '{}' has {} bytes of data; its type {} and its shape need {}",
                         shown(tensor.name), tensor.size_bytes(), dtype_name(tensor.dtype),
                         *needed));
}

SafetensorsTensor parse_tensor(const std::string& name, const json& value,
                               std::uint64_t data_bytes) {
    if (!value.is_object())
        fail(fmt::format("the entry of tensor '{}' is not an object", shown(name)));
    const auto& dtype = member(name, value, "dtype");
    const auto known = dtype.is_string() ? parse_dtype(dtype.get_ref<const std::string&>())
                                         : std::optional<TensorDtype>();
    if (!known)
        fail(fmt::format("tensor '{}' has the unknown dtype {}", shown(name), shown(dtype.dump())));
    const auto offsets = unsigned_list(name, value, "data_offsets");
    if (offsets.size() != 2)
        fail(fmt::format("tensor '{}' has {} data_offsets instead of 2", shown(name),
                         offsets.size()));
    SafetensorsTensor tensor{name, *known, unsigned_list(name, value, "shape"), offsets[0],
                             offsets[1]};
    check_range(tensor, data_bytes);
    return tensor;
}

std::map<std::string, std::string> parse_metadata(const json& value) {
    if (!value.is_object())
        fail("'__metadata__' is not an object");
    std::map<std::string, std::string> metadata;
    for (const auto& [key, text] : value.items()) {
        if (!text.is_string())
            fail(fmt::format("'__metadata__' holds '{}', which is not a text", shown(key)));
        metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
}

void check_cover(const std::vector<SafetensorsTensor>& tensors, std::uint64_t data_bytes) {
    std::uint64_t covered_bytes = 0;
    for (const auto& tensor : tensors) {
        if (tensor.begin_bytes != covered_bytes)
            fail(fmt::format(
                "tensor '{}' begins at byte {} of the data, {} byte {} where the one "
                "before it ends",
                shown(tensor.name), tensor.begin_bytes,
                tensor.begin_bytes < covered_bytes ? "overlapping" : "leaving a gap from",
                covered_bytes));
        covered_bytes = tensor.end_bytes;
    }
    if (covered_bytes != data_bytes)
        fail(fmt::format("the tensors cover {} bytes, but the file holds {} bytes of data",
                         covered_bytes, data_bytes));
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes) {
    const auto root = parse_json(text);
    SafetensorsHeader header;
    for (const auto& [name, value] : root.items()) {
        if (name == metadata_key)
            header.metadata = parse_metadata(value);
        else
            header.tensors.push_back(parse_tensor(name, value, data_bytes));
    }
    std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
        return std::tie(a.begin_bytes, a.end_bytes) < std::tie(b.begin_bytes, b.end_bytes);
    });
    check_cover(header.tensors, data_bytes);
    return header;
}

std::string layout_safetensors(SafetensorsHeader& header) {
    nlohmann::ordered_json root = nlohmann::ordered_json::object();
    if (!header.metadata.empty())
        root[metadata_key] = header.metadata;
    std::uint64_t next_bytes = 0;
    for (auto& tensor : header.tensors) {
        const auto bytes = size_of(tensor.dtype, tensor.shape);
        tensor.begin_bytes = next_bytes;
        if (!bytes || __builtin_add_overflow(next_bytes, *bytes, &next_bytes))
            throw std::invalid_argument(fmt::format(
                "tensor '{}' does not fit a file: its size overflows 64 bits", tensor.name));
        tensor.end_bytes = next_bytes;
        if (tensor.name == metadata_key || root.contains(tensor.name))
            throw std::invalid_argument(
                fmt::format("two tensors of one file have the name '{}'", tensor.name));
        root[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                             {"shape", tensor.shape},
                             {"data_offsets", {tensor.begin_bytes, tensor.end_bytes}}};
    }
    auto text = root.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    return text;
}

}  // namespace spillway::engine
