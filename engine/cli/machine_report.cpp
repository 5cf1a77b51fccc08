// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/machine_report.h"

#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <hwloc.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "cpu_optim/isa.h"
#include "engine/compute/blas_kernels.h"
#include "engine/measure/control_groups.h"
#include "engine/measure/machine_memory.h"
#include "engine/measure/profile.h"
#include "nvme/direct_file.h"
#include "nvme/io_backend.h"

namespace spillway::engine {

namespace {

namespace fs = std::filesystem;

constexpr const char* unknown = "unknown";

std::optional<std::string> first_line(const fs::path& path) {
    std::ifstream file(path);
    std::string line;
    return std::getline(file, line) ? std::optional(line) : std::nullopt;
}

struct TopologyDeleter {
    void operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyDeleter>;

Topology load_topology() {
    hwloc_topology_t raw = nullptr;
    if (hwloc_topology_init(&raw) != 0)
        return nullptr;
    Topology topology(raw);
    return hwloc_topology_load(raw) == 0 ? std::move(topology) : nullptr;
}

std::string cpu_list(hwloc_const_cpuset_t set) {
    char* text = nullptr;
    if (hwloc_bitmap_list_asprintf(&text, set) < 0)
        return unknown;
    std::string list = text;
    std::free(text);
    return list;
}

std::size_t count_of(const Topology& topology, hwloc_obj_type_t type) {
    const int count = hwloc_get_nbobjs_by_type(topology.get(), type);
    return count > 0 ? static_cast<std::size_t>(count) : 0;
}

void inspect_topology(MachineReport& report) {
    const auto topology = load_topology();
    if (!topology)
        return;
    report.packages = count_of(topology, HWLOC_OBJ_PACKAGE);
    report.cores = count_of(topology, HWLOC_OBJ_CORE);
    hwloc_obj_t node = nullptr;
    while ((node = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr)
        report.numa_nodes.push_back(
            {node->os_index, node->attr->numanode.local_memory, cpu_list(node->cpuset)});
}

void inspect_memory(MachineReport& report) {
    report.memory_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                          static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    try {
        const auto available = available_memory();
        report.available_memory_bytes = available.bytes;
        report.memory_limited_by = available.limited_by;
    } catch (const std::exception& error) {
        report.memory_limited_by = error.what();
    }
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
        report.memlock_bytes = limit.rlim_cur == RLIM_INFINITY ? ~std::uint64_t{0} : limit.rlim_cur;
    // "always [madvise] never": the brackets mark the one in force.
    const auto line = first_line("/sys/kernel/mm/transparent_hugepage/enabled").value_or("");
    const auto open = line.find('[');
    const auto close = line.find(']');
    report.huge_pages = open != std::string::npos && close != std::string::npos && open < close
                            ? line.substr(open + 1, close - open - 1)
                            : unknown;
}

std::string yes_or(const std::string& refusal) {
    return refusal.empty() ? "yes" : "no: " + refusal;
}

/// Type and source of the mount that holds `device`, from /proc/self/mountinfo: fields 3 (device),
/// and behind the "-": type, source.
void find_mount(dev_t device, FolderReport& report) {
    const auto wanted = fmt::format("{}:{}", major(device), minor(device));
    std::ifstream file("/proc/self/mountinfo");
    for (std::string line; std::getline(file, line);) {
        std::istringstream fields(line);
        std::string field;
        for (int i = 0; i < 3; ++i)
            fields >> field;
        if (field != wanted)
            continue;
        while (fields >> field && field != "-") {
        }
        fields >> report.file_system >> report.source;
        return;
    }
}

fs::path block_folder(dev_t device) {
    return fs::path("/sys/dev/block") / fmt::format("{}:{}", major(device), minor(device));
}

std::size_t number_in(const fs::path& path) {
    std::ifstream file(path);
    std::size_t number = 0;
    return file >> number ? number : 0;
}

DriveQueue inspect_queue(dev_t device) {
    DriveQueue queue;
    std::error_code absent;
    auto folder = fs::canonical(block_folder(device), absent) / "queue";
    if (!fs::exists(folder, absent))
        folder = folder.parent_path().parent_path() / "queue";
    queue.logical_sector_bytes = number_in(folder / "logical_block_size");
    queue.physical_sector_bytes = number_in(folder / "physical_block_size");
    queue.largest_request_bytes = number_in(folder / "max_sectors_kb") * 1024;
    queue.most_segments = number_in(folder / "max_segments");
    queue.write_cache = first_line(folder / "write_cache").value_or(unknown);
    const auto poll = first_line(folder / "io_poll");
    queue.polling = !poll ? unknown : *poll == "1" ? "yes" : "no";
    return queue;
}

/// Whether a ring can have a thread of the kernel that looks for requests.
std::string io_uring_thread_refusal() {
    try {
        const nvme::UringOptions options{.submission =
                                             nvme::UringOptions::Submission::kernel_thread};
        const auto notes =
            nvme::make_backend(nvme::BackendKind::io_uring, 1, options)->use_fixed({});
        return notes.empty() ? "" : notes.front();
    } catch (const std::exception&) {
        return "io_uring cannot be used";
    }
}

std::string aio_requests() {
    const auto used = first_line("/proc/sys/fs/aio-nr");
    const auto most = first_line("/proc/sys/fs/aio-max-nr");
    return used && most ? fmt::format("{} of {} in use", *used, *most) : unknown;
}

void inspect_direct_io(FolderReport& report) {
    const auto path = report.folder / fmt::format("spillway.info.{}", ::getpid());
    try {
        const nvme::DirectFile file(path, nvme::OpenMode::create_exclusive,
                                    nvme::DirectMode::required);
        fs::remove(path);
        report.direct_io = "yes";
        report.memory_alignment_bytes = file.alignment().memory_bytes;
        report.offset_alignment_bytes = file.alignment().offset_bytes;
    } catch (const std::exception& error) {
        std::error_code ignored;
        fs::remove(path, ignored);
        report.direct_io = fmt::format("no: {}", error.what());
    }
}

FolderReport inspect_folder(const fs::path& folder) {
    FolderReport report;
    report.folder = fs::absolute(folder);
    report.file_system = report.source = report.drive = unknown;
    report.queue.write_cache = report.queue.polling = unknown;
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
        report.direct_io = "no: there is no such folder";
        return report;
    }
    find_mount(status.st_dev, report);
    report.drive = drive_kind(block_folder(status.st_dev));
    report.queue = inspect_queue(status.st_dev);
    try {
        report.free_bytes = nvme::available_bytes(folder);
    } catch (const std::exception&) {
        report.free_bytes = 0;
    }
    inspect_direct_io(report);
    return report;
}

/// "max 100000" or "150000 100000": quota and period in microseconds.
std::optional<double> quota_v2(const fs::path& folder) {
    std::ifstream file(folder / "cpu.max");
    double quota = 0;
    double period = 0;
    return file >> quota >> period && period > 0 ? std::optional(quota / period) : std::nullopt;
}

std::optional<double> quota_v1(const fs::path& folder) {
    std::ifstream quota_file(folder / "cpu.cfs_quota_us");
    std::ifstream period_file(folder / "cpu.cfs_period_us");
    double quota = 0;
    double period = 0;
    if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0)
        return std::nullopt;
    return quota / period;
}

/// The least quota of a group and all above it; inside a container its own folders may be the root.
template <typename Quota>
void take_least(const fs::path& mount, fs::path group, const Quota& quota, double& least) {
    group = group.relative_path();
    for (;;) {
        if (const auto found = quota(mount / group))
            least = least == 0 ? *found : std::min(least, *found);
        if (group.empty())
            return;
        group = group.parent_path();
    }
}

}  // namespace

std::string drive_kind(const fs::path& block) {
    std::error_code ignored;
    const auto resolved = fs::canonical(block, ignored);
    // What a hypervisor shows says "rotating" whatever lies behind it.
    for (const char* bus : {"/virtio", "/vbd-", "/xen", "/vmbus", "/virtual/block/loop"})
        if (resolved.string().find(bus) != std::string::npos)
            return "virtual, of unknown kind";
    // A partition has no queue of its own: the folder above it is the drive.
    for (const auto& folder : {resolved, resolved.parent_path()}) {
        if (const auto line = first_line(folder / "queue" / "rotational"))
            return *line == "1" ? "rotating" : "solid state";
    }
    return unknown;
}

double cgroup_processors(const fs::path& root) {
    double least = 0;
    for (const auto& [version, hierarchy, group] : control_groups(root, "cpu"))
        take_least(hierarchy, group, version == GroupVersion::one ? quota_v1 : quota_v2, least);
    return least;
}

MachineReport inspect_machine(const fs::path& folder) {
    MachineReport report;
    report.cpu = cpu_model_name();
    inspect_topology(report);
    report.processors = static_cast<std::size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
    report.usable_processors = usable_processors();
    report.cgroup_processors = cgroup_processors();
    for (const auto isa : cpu_optim::supported_isas())
        report.isas.emplace_back(cpu_optim::isa_name(isa));
    report.isa = cpu_optim::isa_name(cpu_optim::best_isa());
    report.blas_kernels = blas_kernels();
    inspect_memory(report);
    report.io_uring = yes_or(nvme::io_uring_refusal());
    report.io_uring_thread = yes_or(io_uring_thread_refusal());
    report.libaio = yes_or(nvme::libaio_refusal());
    report.aio_requests = aio_requests();
    report.io_backend = nvme::automatic_choice();
    report.folder = inspect_folder(folder);
    report.cuda = cuda::inspect_cuda();
    report.nccl = cuda::inspect_nccl();
    report.cufile = cuda::inspect_cufile();
    return report;
}

}  // namespace spillway::engine
