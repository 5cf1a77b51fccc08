// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

namespace spillway::offload {

/// Seconds for which forward and backward stood still, by cause.
struct StallSeconds {
    double nvme_read = 0;
    double nvme_write = 0;
    double link = 0;
    double cpu = 0;  ///< for an update (its arithmetic) or a gradient scan
    double commit = 0;
    double devices = 0;  ///< for what other devices of a group have yet to do

    [[nodiscard]] double sum() const noexcept {
        return nvme_read + nvme_write + link + cpu + commit + devices;
    }
    [[nodiscard]] friend StallSeconds operator+(const StallSeconds& a,
                                                const StallSeconds& b) noexcept {
        return {.nvme_read = a.nvme_read + b.nvme_read,
                .nvme_write = a.nvme_write + b.nvme_write,
                .link = a.link + b.link,
                .cpu = a.cpu + b.cpu,
                .commit = a.commit + b.commit,
                .devices = a.devices + b.devices};
    }
};

}  // namespace spillway::offload
