// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "cpu_optim/split_master.h"
#include "engine/interop/atomic_file.h"
#include "engine/interop/safetensors_reader.h"
#include "engine/interop/safetensors_writer.h"
#include "tests/support/temporary_folder.h"

namespace spillway::engine {

namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

std::string length_field(std::uint64_t length) {
    std::string field(8, '\0');
    std::memcpy(field.data(), &length, field.size());
    return field;
}

std::string file_of(const std::string& json, std::size_t data_bytes) {
    return length_field(json.size()) + json + std::string(data_bytes, 'x');
}

/// A new file each time: cutting an old one short would flush it to the drive.
void put(const fs::path& path, const std::string& content) {
    fs::remove(path);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

std::string get(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
    return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                       offsets);
}

SafetensorsHeader two_tensors() {
    SafetensorsHeader header;
    header.metadata = {{"format", "pt"}};
    header.tensors = {{"first", TensorDtype::f32, {2, 3}, 0, 0},
                      {"second", TensorDtype::bf16, {5}, 0, 0}};
    return header;
}

std::string valid_file(const fs::path& folder) {
    const auto path = folder / "valid.safetensors";
    SafetensorsWriter writer(path, two_tensors());
    const std::vector<float> values{0, 1, -2, 3.5f, 4, 5};
    std::vector<std::byte> stored(12);
    writer.write(0, 12, std::as_bytes(std::span(values)).subspan(12));
    writer.write(0, 0, std::as_bytes(std::span(values)).first(12));
    encode_floats(TensorDtype::bf16, std::span(values).first(5), std::span(stored).first(10));
    writer.write(1, 0, std::span(stored).first(10));
    writer.finish();
    return get(path);
}

struct Malformed {
    const char* what;
    std::string content;
    const char* text;  ///< part of the error
};

std::vector<Malformed> malformed_lengths() {
    const auto json = "{" + entry("a", "F32", "[2]", "[0,8]") + "}";
    const auto whole = file_of(json, 8);
    return {
        {"an empty file", "", "0 bytes"},
        {"half a length", "1234", "4 bytes"},
        {"length 2^64 - 1", length_field(~std::uint64_t{0}) + json, "18446744073709551615"},
        {"length that is negative as signed", length_field(std::uint64_t{1} << 63) + json, "limit"},
        {"length above the format's limit", length_field(100'000'001) + json, "limit"},
        {"length beyond the file", length_field(json.size() + 9) + json + std::string(8, 'x'),
         "only"},
        {"length 0", length_field(0) + json, "'{'"},
        {"data cut short", whole.substr(0, whole.size() - 1), "holds only 7"},
        {"data too long", whole + "x", "cover 8 bytes"},
        {"header cut short", whole.substr(0, 20), "only 12 follow"},
    };
}

std::vector<Malformed> malformed_json() {
    return {
        {"no JSON", file_of("{nonsense}", 8), "JSON"},
        {"a list", file_of("[]", 0), "'{'"},
        {"spaces first", file_of(" {}", 0), "'{'"},
        {"invalid UTF-8", file_of("{\"\xff\xfe\":1}", 0), "JSON"},
        {"a name twice",
         file_of("{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("a", "F32", "[1]", "[4,8]") +
                     "}",
                 8),
         "'a' comes twice"},
        {"a member twice",
         file_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
         "comes twice"},
        {"an entry that is no object", file_of(R"({"a":3})", 0), "not an object"},
        {"no dtype", file_of(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4), "no 'dtype'"},
        {"no shape", file_of(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), "no 'shape'"},
        {"no offsets", file_of(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "no 'data_offsets'"},
        {"one offset", file_of("{" + entry("a", "F32", "[1]", "[4]") + "}", 4), "1 data_offsets"},
        {"unknown dtype", file_of("{" + entry("a", "F31", "[1]", "[0,4]") + "}", 4), "F31"},
        {"metadata of numbers", file_of(R"({"__metadata__":{"a":1}})", 0), "not a text"},
        {"metadata that is a list", file_of(R"({"__metadata__":[]})", 0), "not an object"},
        {"deep nesting", file_of("{\"a\":" + std::string(100'000, '[') + "}", 0), "nests"},
    };
}

std::vector<Malformed> malformed_ranges() {
    const auto one = [](const char* dtype, const char* shape, const char* offsets) {
        return file_of("{" + entry("a", dtype, shape, offsets) + "}", 8);
    };
    const auto two = [](const char* first, const char* second) {
        return file_of(
            "{" + entry("a", "F32", "[1]", first) + "," + entry("b", "F32", "[1]", second) + "}",
            12);
    };
    return {
        {"offsets beyond the file", one("F32", "[4]", "[0,16]"), "ends at byte 16"},
        {"huge offsets", one("F32", "[2]", "[18446744073709551600,18446744073709551608]"),
         "holds only 8"},
        {"reversed offsets", one("F32", "[2]", "[8,0]"), "before it begins"},
        {"negative offset", one("F32", "[2]", "[-8,0]"), "-8"},
        {"fractional offset", one("F32", "[2]", "[0,8.0]"), "8.0"},
        {"an offset of more than 64 bits", one("F32", "[2]", "[0,18446744073709551624]"),
         "not an integer"},
        {"negative length", one("F32", "[-2]", "[0,8]"), "-2"},
        {"shape too small", one("F32", "[1]", "[0,8]"), "need 4"},
        {"shape too large", one("F32", "[3]", "[0,8]"), "need 12"},
        {"product that overflows to the right size",
         one("F32", "[4294967296,4294967296,2]", "[0,8]"), "2^64"},
        {"zero beside an overflow", one("F32", "[4294967296,4294967296,0]", "[0,8]"), "need 0"},
        {"overlap", two("[0,4]", "[2,6]"), "overlapping"},
        {"same range twice", two("[0,4]", "[0,4]"), "overlapping"},
        {"gap", two("[0,4]", "[8,12]"), "gap"},
        {"gap at the start", two("[4,8]", "[8,12]"), "gap"},
        {"data behind the last", two("[0,4]", "[4,8]"), "cover 8 bytes"},
    };
}

}  // namespace

TEST_CASE("safetensors: what is written piece by piece is read back") {
    const testing::TemporaryFolder folder;
    const auto content = valid_file(folder.path());
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, content.data(), 8);
    CHECK((header_bytes + 8) % 8 == 0);
    CHECK(content.size() == 8 + header_bytes + 24 + 10);

    const SafetensorsReader reader(folder.path() / "valid.safetensors");
    CHECK(reader.metadata().at("format") == "pt");
    REQUIRE(reader.tensors().size() == 2);
    const auto* first = reader.find("first");
    const auto* second = reader.find("second");
    REQUIRE(first != nullptr);
    REQUIRE(second != nullptr);
    CHECK(reader.find("third") == nullptr);
    CHECK(first->shape == std::vector<std::uint64_t>{2, 3});
    std::vector<float> values(6);
    reader.read_floats(*first, 0, values);
    CHECK(values == std::vector<float>{0, 1, -2, 3.5f, 4, 5});
    std::vector<float> part(3);
    reader.read_floats(*second, 2, part);
    CHECK(part == std::vector<float>{-2, 3.5f, 4});
    CHECK_THROWS_AS(reader.read_floats(*second, 3, part), std::out_of_range);
}

TEST_CASE("safetensors: every malformed file is an error that names path and flaw") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "malformed.safetensors";
    for (const auto& list : {malformed_lengths(), malformed_json(), malformed_ranges()}) {
        for (const auto& flaw : list) {
            INFO(flaw.what);
            put(path, flaw.content);
            CHECK_THROWS_WITH(SafetensorsReader(path),
                              Contains(path.string()) && Contains(flaw.text));
        }
    }
    CHECK_THROWS_AS(SafetensorsReader(folder.path() / "absent"), std::system_error);
    CHECK_THROWS(SafetensorsReader(folder.path()));
}

TEST_CASE("safetensors: scalars, empty tensors and an empty file are valid") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "small.safetensors";
    put(path, file_of("{}", 0));
    CHECK(SafetensorsReader(path).tensors().empty());
    put(path, file_of("{" + entry("scalar", "F32", "[]", "[0,4]") + "," +
                          entry("empty", "I64", "[0,7]", "[4,4]") + "}   ",
                      4));
    const SafetensorsReader reader(path);
    REQUIRE(reader.tensors().size() == 2);
    CHECK(reader.find("scalar")->elements() == 1);
    CHECK(reader.find("empty")->elements() == 0);
}

TEST_CASE("safetensors: damaged copies of a valid file are refused or read within bounds") {
    const testing::TemporaryFolder folder;
    const auto valid = valid_file(folder.path());
    const auto path = folder.path() / "damaged.safetensors";
    std::mt19937_64 random(99);
    int refused = 0;
    int accepted = 0;
    for (int round = 0; round < 4000; ++round) {
        auto content = valid;
        const auto edits = 1 + random() % 3;
        for (std::uint64_t edit = 0; edit < edits; ++edit) {
            const auto place = random() % content.size();
            switch (random() % 4) {
                case 0:
                    content[place] = static_cast<char>(random());
                    break;
                case 1:
                    content[place] = "0123456789-[]{},:\"e."[random() % 20];
                    break;
                case 2:
                    content.erase(place, 1 + random() % 8);
                    break;
                default:
                    content.insert(place, content.substr(random() % content.size(), 9));
                    break;
            }
            if (content.empty())
                content = "x";
        }
        put(path, content);
        try {
            const SafetensorsReader reader(path);
            ++accepted;
            for (const auto& tensor : reader.tensors()) {
                REQUIRE(tensor.end_bytes <= content.size());
                std::vector<std::byte> data(tensor.size_bytes());
                reader.read(tensor, 0, data);
            }
        } catch (const std::runtime_error&) {
            ++refused;
        }
    }
    CHECK(refused > 1000);
    CHECK(accepted > 100);  // damage of the data alone cannot be seen
}

TEST_CASE("safetensors: an unfinished file never gets its name") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "model.safetensors";
    put(path, "old");
    {
        SafetensorsWriter writer(path, two_tensors());
        CHECK(fs::exists(partial_path_of(path)));
        CHECK_THROWS_WITH(writer.finish(), Contains("'first'") && Contains("0 of its 24"));
    }
    CHECK_FALSE(fs::exists(partial_path_of(path)));
    CHECK(get(path) == "old");
    put(partial_path_of(path), "left by a killed program");
    {
        SafetensorsWriter writer(path, two_tensors());
        const std::vector<std::byte> bytes(24);
        writer.write(0, 0, bytes);
        CHECK_THROWS_AS(writer.write(1, 1, std::span(bytes).first(10)), std::out_of_range);
        CHECK_THROWS_AS(writer.write(1, 11, {}), std::out_of_range);
        writer.write(1, 0, std::span(bytes).first(10));
        writer.finish();
    }
    CHECK_FALSE(fs::exists(partial_path_of(path)));
    CHECK(SafetensorsReader(path).tensors().size() == 2);
}

TEST_CASE("safetensors: a header that cannot be written is refused") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "model.safetensors";
    auto header = two_tensors();
    header.tensors[1].name = "first";
    CHECK_THROWS_WITH(SafetensorsWriter(path, header), Contains("'first'"));
    header.tensors[1].name = "__metadata__";
    CHECK_THROWS_WITH(SafetensorsWriter(path, header), Contains("__metadata__"));
    header.tensors[1] = {"huge", TensorDtype::f64, {std::uint64_t{1} << 61}, 0, 0};
    CHECK_THROWS_WITH(SafetensorsWriter(path, header), Contains("overflows"));
    CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("tensor_dtype: bf16 is the working weight, f16 decodes exactly") {
    const std::vector<float> values{1.0f, -0.1f, 1.00390625f, 3e38f, 0.0f};
    std::vector<std::byte> stored(values.size() * 2);
    encode_floats(TensorDtype::bf16, values, stored);
    std::vector<float> back(values.size());
    decode_floats(TensorDtype::bf16, stored, back);
    for (std::size_t i = 0; i < values.size(); ++i)
        CHECK(std::bit_cast<std::uint32_t>(back[i]) >> 16 == cpu_optim::split(values[i]).hi);

    const std::vector<std::uint16_t> halves{0x0000, 0x8000, 0x0001, 0x03FF, 0x0400,
                                            0x3C00, 0xC000, 0x7BFF, 0x7C00, 0xFC00};
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> expected{0.0f, -0.0f, 0x1p-24f, 0x1.ff8p-15f, 0x1p-14f,
                                      1.0f, -2.0f, 65504.0f, infinity,     -infinity};
    std::vector<float> decoded(halves.size());
    decode_floats(TensorDtype::f16, std::as_bytes(std::span(halves)), decoded);
    for (std::size_t i = 0; i < halves.size(); ++i)
        CHECK(std::bit_cast<std::uint32_t>(decoded[i]) ==
              std::bit_cast<std::uint32_t>(expected[i]));
    const std::vector<std::uint16_t> not_a_number{0x7E01};
    decode_floats(TensorDtype::f16, std::as_bytes(std::span(not_a_number)),
                  std::span(decoded).first(1));
    CHECK(std::isnan(decoded[0]));
    CHECK_THROWS_AS(decode_floats(TensorDtype::i64, {}, {}), std::invalid_argument);
    CHECK_THROWS_AS(encode_floats(TensorDtype::f16, {}, {}), std::invalid_argument);
    CHECK_THROWS_AS(decode_floats(TensorDtype::f32, stored, back), std::invalid_argument);
}

}  // namespace spillway::engine
