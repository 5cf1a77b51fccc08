#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Draws a part of a trace (`spillway train --trace`) as an SVG: a row a lane, a row below it for each kind of waits,
colours by what is done or waited for.

    scripts/trace_picture.py TRACE.json PICTURE.svg [--from SECONDS] [--to SECONDS] [--title TEXT]
"""
import argparse
import html
import json
import sys

COLOURS = {"compute": "#4c78a8", "link": "#f58518", "weights": "#b279a2", "gradients": "#72b7b2", "cpu": "#54a24b",
           "commit": "#e45756", "nvme_read": "#9d755d", "nvme_write": "#d8b5a5", "devices": "#eeca3b",
           "other": "#bab0ac"}
WORDS = {"compute": "forward, backward", "link": "link", "weights": "joining weights", "gradients": "scanning gradients",
         "cpu": "update", "commit": "commit", "nvme_read": "drive reads", "nvme_write": "drive writes",
         "devices": "between devices", "other": "other"}
LABELS, CHART, SHARES = 150, 860, 60
ROW, WAITS, GAP, TOP, FOOT = 22, 10, 6, 58, 46


def work_of(lane):
    """What others wait for while the lane is busy, as its name tells."""
    for word, cause in (("compute", "compute"), ("link", "link"), ("layer inputs", "link"), ("exchange", "devices"),
                        ("weights", "weights"), ("gradients", "gradients"), ("update", "cpu"), ("commit", "commit"),
                        ("reads", "nvme_read"), ("writes", "nvme_write")):
        if word in lane:
            return cause
    return "other"


def clipped(events, begin, end):
    for event in events:
        left, right = event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6
        if right > begin and left < end:
            yield max(left, begin), min(right, end), event["name"]


def merged(spans, least):
    """Spans of one colour, those that no eye could part as one."""
    whole = []
    for left, right, colour in sorted(spans):
        if whole and whole[-1][2] == colour and left - whole[-1][1] < least:
            whole[-1][1] = max(whole[-1][1], right)
        else:
            whole.append([left, right, colour])
    return whole


class Picture:
    def __init__(self, trace, begin, end, title):
        events = trace["traceEvents"]
        self.rows = {}
        for event in events:
            if event["ph"] == "X":
                self.rows.setdefault(event["tid"], []).append(event)
        self.names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.lanes = trace["otherData"]["lanes"]
        self.begin = begin
        self.end = min(trace["otherData"]["wall_s"], end)
        if self.end <= self.begin:
            sys.exit(f"nothing of the trace lies between {begin} and {end} s: it has {trace['otherData']['wall_s']:.3f}")
        self.title = title
        self.used = set()
        self.parts = []
        self.y = TOP

    def x(self, seconds):
        return LABELS + CHART * (seconds - self.begin) / (self.end - self.begin)

    def text(self, x, y, words, anchor="start", size=12):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{html.escape(words)}'
                          "</text>")

    def bars(self, spans, y, height):
        for left, right, cause in merged(spans, 0.7 * (self.end - self.begin) / CHART):
            self.used.add(cause)
            width = max(0.5, self.x(right) - self.x(left))
            self.parts.append(f'<rect x="{self.x(left):.1f}" y="{y}" width="{width:.1f}" height="{height}" '
                              f'fill="{COLOURS[cause]}"/>')

    def lane(self, lane):
        spans = [span for tid in lane["tids"] for span in clipped(self.rows.get(tid, []), self.begin, self.end)]
        cause = work_of(lane["name"])
        self.text(LABELS - 8, self.y + 15, lane["name"], "end")
        self.bars([(left, right, cause) for left, right, _ in spans], self.y, ROW)
        busy, reach = 0.0, self.begin
        for left, right, _ in sorted(spans):
            busy += max(0.0, right - max(left, reach))
            reach = max(reach, right)
        self.text(LABELS + CHART + 8, self.y + 15, f"{100 * busy / (self.end - self.begin):.1f} %")
        self.y += ROW + GAP

    def waits(self, tid):
        spans = list(clipped(self.rows.get(tid, []), self.begin, self.end))
        if not spans:
            return
        self.text(LABELS - 8, self.y + 9, self.names[tid], "end", 10)
        self.bars(spans, self.y, WAITS)
        self.y += WAITS + GAP

    def axis(self):
        length = self.end - self.begin
        step = next(step for step in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1e9)
                    if length / step <= 12)
        tick = step * int(self.begin / step + 0.999)
        while tick <= self.end:
            self.parts.append(f'<line x1="{self.x(tick):.1f}" y1="{TOP - 6}" x2="{self.x(tick):.1f}" y2="{self.y}" '
                              'stroke="#ddd"/>')
            self.text(self.x(tick), TOP - 10, f"{tick:.4g} s", "middle", 10)
            tick += step

    def legend(self):
        x = LABELS
        for cause in COLOURS:
            if cause not in self.used:
                continue
            self.parts.append(f'<rect x="{x}" y="{self.y + 14}" width="12" height="12" fill="{COLOURS[cause]}"/>')
            self.text(x + 17, self.y + 24, WORDS[cause], size=11)
            x += 34 + 7 * len(WORDS[cause])

    def svg(self):
        for lane in self.lanes:
            self.lane(lane)
        owned = {tid for lane in self.lanes for tid in lane["tids"]}
        for tid, name in sorted(self.names.items()):
            if tid not in owned and name.endswith("waits"):
                self.waits(tid)
        drawn, self.parts = self.parts, []
        self.axis()
        self.parts += drawn
        self.legend()
        self.text(LABELS, 22, self.title, size=14)
        self.text(LABELS + CHART + 8, TOP - 10, "busy", size=10)
        width, height = LABELS + CHART + SHARES, self.y + FOOT
        return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                          f'viewBox="0 0 {width} {height}" font-family="sans-serif" fill="#222">',
                          f'<rect width="{width}" height="{height}" fill="white"/>', *self.parts, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description="Draws a part of a trace as an SVG.")
    parser.add_argument("trace")
    parser.add_argument("picture")
    parser.add_argument("--from", dest="begin", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--to", dest="end", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--title", default="")
    given = parser.parse_args()
    with open(given.trace, encoding="utf-8") as file:
        trace = json.load(file)
    picture = Picture(trace, given.begin, given.end, given.title).svg()
    with open(given.picture, "w", encoding="utf-8") as file:
        file.write(picture)


main()
