// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/machine_report.h"

#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "cpu_optim/isa.h"
#include "nvme/io_backend.h"
#include "tests/support/temporary_folder.h"

namespace spillway::engine {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

void put(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("machine_report: every part has an answer, and the folder stays as it was") {
    const testing::TemporaryFolder folder;
    const auto report = inspect_machine(folder.path());
    CHECK_FALSE(report.cpu.empty());
    CHECK(report.usable_processors >= 1);
    CHECK(report.usable_processors <= report.processors);
    CHECK(report.isa == cpu_optim::isa_name(cpu_optim::best_isa()));
    CHECK(report.isas.front() == "scalar");
    CHECK(report.isas.back() == report.isa);
    CHECK_FALSE(report.numa_nodes.empty());
    CHECK(report.memory_bytes > report.available_memory_bytes);
    CHECK(report.available_memory_bytes > 0);
    CHECK(report.folder.file_system != "unknown");
    CHECK(report.folder.free_bytes > 0);
    CHECK((report.folder.direct_io == "yes") == (report.folder.offset_alignment_bytes > 0));
    CHECK(fs::is_empty(folder.path()));
    CHECK(report.io_backend == nvme::automatic_choice());
    CHECK((report.io_uring == "yes" || report.io_uring_thread != "yes"));
    const auto& queue = report.folder.queue;
    // All or nothing: either the folder lies on a drive of this machine or not.
    CHECK((queue.logical_sector_bytes > 0) == (queue.largest_request_bytes > 0));
    CHECK(queue.physical_sector_bytes >= queue.logical_sector_bytes);
    CHECK((queue.logical_sector_bytes > 0) == (queue.write_cache != "unknown"));
    if (report.folder.direct_io == "yes" && queue.logical_sector_bytes > 0)
        CHECK(report.folder.offset_alignment_bytes % queue.logical_sector_bytes == 0);

    const auto root = nlohmann::json::parse(machine_report_json(report));
    CHECK(root["isa"] == report.isa);
    CHECK(root["blas_kernels"] == report.blas_kernels);
    CHECK(root["folder"]["path"] == folder.path().string());
    CHECK(root["io_backend"] == report.io_backend);
    CHECK(root["folder"]["largest_request_bytes"] == queue.largest_request_bytes);
    CHECK(root["gpus"].size() == report.cuda.devices.size());
    // Either there is something, or the reason why not.
    CHECK(root["cuda"]["refusal"].is_null() == report.cuda.refusal.empty());
    CHECK((!report.cuda.devices.empty() || !report.cuda.refusal.empty()));
    for (const auto* library : {"nccl", "cufile"})
        CHECK((root[library]["version"].is_string() || root[library]["refusal"].is_string()));
    std::string all;
    for (const auto& line : machine_report_lines(report))
        all += line + "\n";
    CHECK_THAT(all, Contains(report.cpu) && Contains("io_uring") && Contains("libaio") &&
                        Contains("memlock") && Contains("numa node") && Contains("io backend") &&
                        Contains("queue") && Contains("gpu") && Contains("kernels") &&
                        Contains("nccl") && Contains("cufile"));
}

TEST_CASE("machine_report: GPUs and the libraries for them are shown with their versions") {
    MachineReport report;
    report.cuda.driver_version = 13020;
    report.cuda.kernels = "sm_90";
    report.cuda.devices = {{.name = "Big",
                            .memory_bytes = std::uint64_t{8} << 30,
                            .major = 9,
                            .minor = 0,
                            .pci_address = "0000:65:00.0",
                            .numa_node = 1,
                            .refusal = "it is too old"}};
    report.nccl.version = "2.28.9";
    report.cufile = {.version = "1.15.0", .refusal = "the kernel has no nvidia-fs"};
    const auto root = nlohmann::json::parse(machine_report_json(report));
    CHECK(root["gpus"][0]["name"] == "Big");
    CHECK(root["gpus"][0]["compute_capability"] == "9.0");
    CHECK(root["gpus"][0]["numa_node"] == 1);
    CHECK(root["gpus"][0]["refusal"] == "it is too old");
    CHECK(root["cuda"]["driver"] == "13.2");
    CHECK(root["cuda"]["refusal"].is_null());
    CHECK(root["nccl"]["version"] == "2.28.9");
    CHECK(root["cufile"]["refusal"] == report.cufile.refusal);
    std::string all;
    for (const auto& line : machine_report_lines(report))
        all += line + "\n";
    CHECK_THAT(all, Contains("cuda:0 Big, 8.00 GiB, compute capability 9.0, at 0000:65:00.0, NUMA "
                             "node 1; refused: it is too old") &&
                        Contains("13.2") && Contains("2.28.9") &&
                        Contains("1.15.0, but the kernel has no nvidia-fs"));
}

TEST_CASE("machine_report: a folder that is not there is said to be so") {
    const testing::TemporaryFolder folder;
    const auto report = inspect_machine(folder.path() / "absent");
    CHECK_THAT(report.folder.direct_io, Contains("no such folder"));
    CHECK(report.folder.offset_alignment_bytes == 0);
    CHECK_NOTHROW(nlohmann::json::parse(machine_report_json(report)));
}

TEST_CASE("machine_report: a virtual drive is not called rotating, whatever it says") {
    const testing::TemporaryFolder root;
    const auto sda = root.path() / "devices/pci0000:00/ata1/block/sda";
    put(sda / "queue/rotational", "1\n");
    put(sda / "sda1/partition", "1\n");
    const auto nvme = root.path() / "devices/pci0000:00/nvme/nvme0/nvme0n1";
    put(nvme / "queue/rotational", "0\n");
    const auto vda = root.path() / "devices/pci0000:00/virtio1/block/vda";
    put(vda / "queue/rotational", "1\n");
    put(vda / "vda1/partition", "1\n");
    CHECK(drive_kind(sda) == "rotating");
    CHECK(drive_kind(sda / "sda1") == "rotating");
    CHECK(drive_kind(nvme) == "solid state");
    CHECK(drive_kind(vda) == "virtual, of unknown kind");
    fs::create_symlink(vda / "vda1", root.path() / "254:1");
    CHECK(drive_kind(root.path() / "254:1") == "virtual, of unknown kind");
    CHECK(drive_kind(root.path() / "0:77") == "unknown");
}

TEST_CASE("machine_report: the least quota of the control groups above counts") {
    const testing::TemporaryFolder root;
    CHECK(cgroup_processors(root.path()) == 0);
    put(root.path() / "proc/self/cgroup", "0::/outer/inner\n");
    CHECK(cgroup_processors(root.path()) == 0);
    put(root.path() / "sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
    CHECK(cgroup_processors(root.path()) == 0);
    put(root.path() / "sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
    CHECK(cgroup_processors(root.path()) == 1.5);
    put(root.path() / "sys/fs/cgroup/outer/inner/cpu.max", "50000 100000\n");
    CHECK(cgroup_processors(root.path()) == 0.5);

    put(root.path() / "proc/self/cgroup", "7:memory:/m\n4:cpu,cpuacct:/job\n");
    CHECK(cgroup_processors(root.path()) == 0);
    put(root.path() / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put(root.path() / "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    CHECK(cgroup_processors(root.path()) == 0);
    put(root.path() / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
    put(root.path() / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    CHECK(cgroup_processors(root.path()) == 2.5);
}

}  // namespace spillway::engine
