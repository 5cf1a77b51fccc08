// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/cli/machine_report.h"
#include "engine/train/train_report.h"

namespace spillway::engine {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t unlimited = ~std::uint64_t{0};

std::string line_of(const char* label, const std::string& text) {
    return fmt::format("{:<12} {}", label, text);
}

Json folder_json(const FolderReport& folder) {
    return {{"path", folder.folder.string()},
            {"file_system", folder.file_system},
            {"source", folder.source},
            {"drive", folder.drive},
            {"free_bytes", folder.free_bytes},
            {"direct_io", folder.direct_io},
            {"memory_alignment_bytes", folder.memory_alignment_bytes},
            {"offset_alignment_bytes", folder.offset_alignment_bytes},
            {"logical_sector_bytes", folder.queue.logical_sector_bytes},
            {"physical_sector_bytes", folder.queue.physical_sector_bytes},
            {"largest_request_bytes", folder.queue.largest_request_bytes},
            {"most_segments", folder.queue.most_segments},
            {"write_cache", folder.queue.write_cache},
            {"polling", folder.queue.polling}};
}

std::string queue_text(const DriveQueue& queue) {
    if (queue.logical_sector_bytes == 0)
        return "unknown";
    return fmt::format("sectors of {} bytes ({} inside), requests up to {} in {} segments, {}, {}",
                       queue.logical_sector_bytes, queue.physical_sector_bytes,
                       human_bytes(queue.largest_request_bytes), queue.most_segments,
                       queue.write_cache,
                       queue.polling == "yes" ? "can be polled" : "cannot be polled");
}

std::string processors_text(const MachineReport& report) {
    auto text = fmt::format("{} of {} usable, {} cores, {} packages", report.usable_processors,
                            report.processors, report.cores, report.packages);
    if (report.cgroup_processors > 0)
        text +=
            fmt::format("; a control group allows the time of {:.2f}", report.cgroup_processors);
    return text;
}

std::string direct_io_text(const FolderReport& folder) {
    if (folder.offset_alignment_bytes == 0)
        return folder.direct_io;
    return fmt::format("{}, memory aligned to {} bytes, offsets to {}", folder.direct_io,
                       folder.memory_alignment_bytes, folder.offset_alignment_bytes);
}

/// "13.0" of 13000.
std::string version_text(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Json gpus_json(const cuda::CudaReport& report) {
    auto list = Json::array();
    for (const auto& gpu : report.devices)
        list.push_back({{"name", gpu.name},
                        {"memory_bytes", gpu.memory_bytes},
                        {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                        {"pci_address", gpu.pci_address},
                        {"numa_node", gpu.numa_node},
                        {"refusal", gpu.refusal.empty() ? Json(nullptr) : Json(gpu.refusal)}});
    return list;
}

Json cuda_json(const cuda::CudaReport& report) {
    Json json{{"driver", nullptr}, {"kernels", report.kernels}, {"refusal", nullptr}};
    if (report.driver_version > 0)
        json["driver"] = version_text(report.driver_version);
    if (!report.refusal.empty())
        json["refusal"] = report.refusal;
    return json;
}

Json library_json(const cuda::NearbyLibrary& library) {
    Json json{{"version", nullptr}, {"refusal", nullptr}};
    if (!library.version.empty())
        json["version"] = library.version;
    if (!library.refusal.empty())
        json["refusal"] = library.refusal;
    return json;
}

std::string library_text(const cuda::NearbyLibrary& library) {
    if (library.version.empty())
        return "no: " + library.refusal;
    return library.refusal.empty() ? library.version : library.version + ", but " + library.refusal;
}

void add_cuda_lines(const MachineReport& report, std::vector<std::string>& lines) {
    const auto& cuda = report.cuda;
    if (!cuda.refusal.empty())
        lines.push_back(line_of("gpus", "none: " + cuda.refusal));
    for (std::size_t i = 0; i < cuda.devices.size(); ++i) {
        const auto& gpu = cuda.devices[i];
        lines.push_back(line_of(
            "gpu", fmt::format("cuda:{} {}, {}, compute capability {}.{}, at "
                               "{}, NUMA node {}{}",
                               i, gpu.name, human_bytes(gpu.memory_bytes), gpu.major, gpu.minor,
                               gpu.pci_address,
                               gpu.numa_node < 0 ? "unknown" : std::to_string(gpu.numa_node),
                               gpu.refusal.empty() ? "" : "; refused: " + gpu.refusal)));
    }
    if (cuda.driver_version > 0)
        lines.push_back(line_of("cuda driver", version_text(cuda.driver_version)));
    lines.push_back(line_of("kernels", cuda.kernels));
    lines.push_back(line_of("nccl", library_text(report.nccl)));
    lines.push_back(line_of("cufile", library_text(report.cufile)));
}

}  // namespace

std::string machine_report_json(const MachineReport& report) {
    Json root{{"cpu", report.cpu},
              {"packages", report.packages},
              {"cores", report.cores},
              {"processors", report.processors},
              {"usable_processors", report.usable_processors},
              {"cgroup_processors", nullptr},
              {"isas", report.isas},
              {"isa", report.isa},
              {"blas_kernels", report.blas_kernels},
              {"numa_nodes", Json::array()},
              {"memory_bytes", report.memory_bytes},
              {"available_memory_bytes", report.available_memory_bytes},
              {"memory_limited_by", report.memory_limited_by},
              {"memlock_bytes", nullptr},
              {"huge_pages", report.huge_pages},
              {"io_uring", report.io_uring},
              {"io_uring_thread", report.io_uring_thread},
              {"libaio", report.libaio},
              {"aio_requests", report.aio_requests},
              {"io_backend", report.io_backend},
              {"folder", folder_json(report.folder)},
              {"gpus", gpus_json(report.cuda)},
              {"cuda", cuda_json(report.cuda)},
              {"nccl", library_json(report.nccl)},
              {"cufile", library_json(report.cufile)}};
    if (report.cgroup_processors > 0)
        root["cgroup_processors"] = report.cgroup_processors;
    if (report.memlock_bytes != unlimited)
        root["memlock_bytes"] = report.memlock_bytes;
    for (const auto& node : report.numa_nodes)
        root["numa_nodes"].push_back(
            {{"number", node.number}, {"memory_bytes", node.memory_bytes}, {"cpus", node.cpus}});
    return root.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> machine_report_lines(const MachineReport& report) {
    std::vector<std::string> lines{
        line_of("cpu", report.cpu),
        line_of("processors", processors_text(report)),
        line_of("isa", fmt::format("{} (of {})", report.isa, fmt::join(report.isas, ", "))),
        line_of("products", "OpenBLAS's kernels for " + report.blas_kernels),
    };
    for (const auto& node : report.numa_nodes)
        lines.push_back(
            line_of("numa node", fmt::format("{}: {}, processors {}", node.number,
                                             human_bytes(node.memory_bytes), node.cpus)));
    const auto memlock =
        report.memlock_bytes == unlimited ? "unlimited" : human_bytes(report.memlock_bytes);
    const auto& folder = report.folder;
    const std::vector<std::string> rest{
        line_of("memory",
                fmt::format("{}, {} available (limited by {})", human_bytes(report.memory_bytes),
                            human_bytes(report.available_memory_bytes), report.memory_limited_by)),
        line_of("memlock", memlock),
        line_of("huge pages", report.huge_pages),
        line_of("io_uring", report.io_uring),
        line_of("", "a thread of the kernel to take requests: " + report.io_uring_thread),
        line_of("libaio", report.libaio),
        line_of("", "requests " + report.aio_requests),
        line_of("io backend", report.io_backend),
        line_of("folder", folder.folder.string()),
        line_of("drive", fmt::format("{} on {} ({}), {} free", folder.file_system, folder.source,
                                     folder.drive, human_bytes(folder.free_bytes))),
        line_of("direct I/O", direct_io_text(folder)),
        line_of("queue", queue_text(folder.queue)),
    };
    lines.insert(lines.end(), rest.begin(), rest.end());
    add_cuda_lines(report, lines);
    return lines;
}

}  // namespace spillway::engine
