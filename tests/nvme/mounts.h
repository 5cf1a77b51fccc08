// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/support/temporary_folder.h"

namespace spillway::nvme::testing {

/// A file system mounted on a fresh folder for the life of the object; needs root.
class MountedFolder {
  public:
    explicit MountedFolder(const char* kind, const char* options, unsigned long flags = 0,
                           const std::string& source = "none") {
        if (::mount(source.c_str(), folder_.path().c_str(), kind, flags, options) != 0)
            refusal_ = std::generic_category().message(errno);
    }
    ~MountedFolder() {
        if (ok())
            ::umount2(folder_.path().c_str(), MNT_DETACH);
    }
    MountedFolder(const MountedFolder&) = delete;
    MountedFolder& operator=(const MountedFolder&) = delete;

    [[nodiscard]] bool ok() const { return refusal_.empty(); }
    [[nodiscard]] const std::string& refusal() const { return refusal_; }
    [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

  private:
    spillway::testing::TemporaryFolder folder_;
    std::string refusal_;
};

/// An ext4 disk of a few MiB on a loop device; needs root and the usual tools. Its image lies in
/// `image_folder`, by default beside the mount.
class SmallDisk {
  public:
    explicit SmallDisk(std::size_t mebibytes, std::size_t sector_bytes = 512,
                       const std::filesystem::path& image_folder = {}) {
        const std::string image =
            ((image_folder.empty() ? folder_.path() : image_folder) / "image").string();
        const std::string disk = (folder_.path() / "disk").string();
        run(fmt::format("truncate -s {}M {} && mkfs.ext4 -q -b 4096 -m 0 {} && mkdir {}", mebibytes,
                        image, image, disk));
        if (!ok())
            return;
        device_ =
            run(fmt::format("losetup --find --show --sector-size {} {}", sector_bytes, image));
        if (ok())
            run(fmt::format("mount {} {}", device_, disk));
        is_mounted_ = ok();
    }
    ~SmallDisk() {
        if (is_mounted_)
            ::umount2(path().c_str(), MNT_DETACH);
        if (!device_.empty())
            run("losetup --detach " + device_);
    }
    SmallDisk(const SmallDisk&) = delete;
    SmallDisk& operator=(const SmallDisk&) = delete;

    [[nodiscard]] bool ok() const { return refusal_.empty(); }
    [[nodiscard]] const std::string& refusal() const { return refusal_; }
    [[nodiscard]] std::filesystem::path path() const { return folder_.path() / "disk"; }

  private:
    /// Standard output, first line.
    std::string run(const std::string& command) {
        FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
        if (pipe == nullptr) {
            refusal_ = "popen failed";
            return {};
        }
        std::array<char, 512> text = {};
        const std::size_t length = std::fread(text.data(), 1, text.size() - 1, pipe);
        std::string line(text.data(), length);
        line = line.substr(0, line.find('\n'));
        if (::pclose(pipe) != 0) {
            refusal_ = line.empty() ? command + " failed" : line;
            return {};
        }
        return line;
    }

    spillway::testing::TemporaryFolder folder_;
    std::string device_;
    std::string refusal_;
    bool is_mounted_ = false;
};

}  // namespace spillway::nvme::testing
