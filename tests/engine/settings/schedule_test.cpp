// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/schedule.h"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

using namespace spillway::engine;

namespace {

Schedule make(ScheduleShape shape, double final_part = 0, std::uint64_t warmup = 0,
              double peak = 2.0) {
    return Schedule({shape, peak, final_part, warmup});
}

}  // namespace

TEST_CASE("schedules are known by name") {
    for (const auto shape : {ScheduleShape::constant, ScheduleShape::linear, ScheduleShape::cosine})
        CHECK(parse_schedule_shape(schedule_shape_name(shape)) == shape);
    CHECK_THROWS_WITH(parse_schedule_shape("step"),
                      Catch::Contains("'step'") && Catch::Contains("constant, linear and cosine"));
    CHECK_THROWS_AS(parse_schedule_shape(""), std::invalid_argument);
}

TEST_CASE("each shape has its formula") {
    CHECK(make(ScheduleShape::constant, 0.5).at_update(9, 10) == 2.0);
    const auto linear = make(ScheduleShape::linear, 0.1);
    CHECK(linear.at_update(0, 8) == 2.0);
    CHECK(linear.at_update(4, 8) == Approx(2.0 * 0.55));
    CHECK(linear.at_update(8, 8) == Approx(0.2));
    CHECK(linear.at_update(100, 8) == Approx(0.2));
    const auto cosine = make(ScheduleShape::cosine, 0.1);
    CHECK(cosine.at_update(0, 8) == 2.0);
    CHECK(cosine.at_update(2, 8) == Approx(2.0 * (0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2)));
    CHECK(cosine.at_update(4, 8) == Approx(2.0 * 0.55));
    CHECK(cosine.at_update(8, 8) == Approx(0.2));
    CHECK(make(ScheduleShape::cosine).at_update(8, 8) == Approx(0).margin(1e-15));
}

TEST_CASE("the warm-up rises in equal steps to the peak, and the shape begins behind it") {
    const auto schedule = make(ScheduleShape::linear, 0, 4);
    CHECK(schedule.at_update(0, 12) == 0.5);
    CHECK(schedule.at_update(1, 12) == 1.0);
    CHECK(schedule.at_update(3, 12) == 2.0);
    CHECK(schedule.at_update(4, 12) == 2.0);
    CHECK(schedule.at_update(8, 12) == 1.0);
    CHECK(schedule.at_update(11, 12) == Approx(0.25));
    CHECK(schedule.at_update(3, 4) == 2.0);
    CHECK_THROWS_WITH(schedule.at_update(0, 3),
                      Catch::Contains("warm-up of 4 updates") && Catch::Contains("schedule of 3"));
}

TEST_CASE("by progress, the shape follows the clock and the warm-up the updates") {
    const auto schedule = make(ScheduleShape::linear, 0, 4);
    CHECK(schedule.at_progress(0, 0) == 0.5);
    CHECK(schedule.at_progress(1, 0.5) == Approx(0.5));
    CHECK(schedule.at_progress(4, 0.25) == Approx(1.5));
    CHECK(schedule.at_progress(1000, 1) == 0);
    const auto bad = GENERATE(-0.1, 1.1, std::numeric_limits<double>::quiet_NaN());
    CHECK_THROWS_WITH(schedule.at_progress(0, bad), Catch::Contains("progress"));
}

TEST_CASE("options out of their range are refused by name") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto peak = GENERATE_COPY(-1e-4, nan, std::numeric_limits<double>::infinity());
    CHECK_THROWS_WITH(make(ScheduleShape::cosine, 0, 0, peak), Catch::Contains("learning rate"));
    const auto part = GENERATE_COPY(-0.1, 1.5, nan);
    CHECK_THROWS_WITH(make(ScheduleShape::cosine, part), Catch::Contains("of the peak"));
}
