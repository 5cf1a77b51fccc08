// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/tuning_search.h"

#include <algorithm>

#include "engine/measure/median.h"

namespace spillway::engine {
namespace {

class Descent {
  public:
    Descent(const TuningSearch& search, const TimedTuning& timed)
        : search_(search), timed_(timed), began_s_(search.now_s()), best_(search.defaults) {}

    TuningOutcome run() {
        bool gained = true;
        while (gained && !is_over()) {
            gained = false;
            for (const auto& ladder : search_.ladders)
                gained = climb(ladder) || gained;
        }
        outcome_.whole = !is_over();
        if (best_ != search_.defaults)
            confirm();
        return outcome_;
    }

  private:
    /// What pairs say: a step by the old tuning over one by the new one.
    struct Verdict {
        std::vector<double> ratios;

        [[nodiscard]] double ratio() const { return median(ratios); }
        [[nodiscard]] std::size_t lost() const {
            return static_cast<std::size_t>(
                std::ranges::count_if(ratios, [](double ratio) { return ratio <= 1; }));
        }
        [[nodiscard]] bool is_clear(std::size_t most_lost) const {
            return lost() <= most_lost && ratio() >= least_tuning_gain;
        }
    };
    enum class First { old_one, new_one };
    /// How two tunings are compared.
    struct Pairs {
        TuningScene scene = TuningScene::update;
        std::size_t count = tuning_pairs;
        std::size_t most_lost = 1;     ///< with more the rest is left out: it cannot be clear
        First first = First::old_one;  ///< that is made and stepped; then the other way round
        double kept_s = 0;             ///< of the time, which no pair may begin in
    };

    [[nodiscard]] double left_s() const { return search_.limit_s - (search_.now_s() - began_s_); }
    /// For the last comparison: its pairs in every scene, and what making takes, as a first step
    /// and room on a drive, twice for each of two tunings, of updates and of weights.
    [[nodiscard]] double kept_s() const {
        constexpr std::size_t made_as_pairs = 12;
        return longest_pair_s_ *
               static_cast<double>(2 * fresh_pairs * search_.scenes.size() + made_as_pairs);
    }
    [[nodiscard]] bool is_over() const { return search_.stop() || left_s() <= kept_s(); }

    /// Up while that gains, else down.
    bool climb(const TuningLadder& ladder) {
        const auto from = best_;
        while (try_next(ladder, Way::up)) {
        }
        if (best_ == from) {
            while (try_next(ladder, Way::down)) {
            }
        }
        return best_ != from;
    }

    enum class Way { up, down };
    bool try_next(const TuningLadder& ladder, Way way) {
        const auto now = best_.*ladder.field;
        const auto& rungs = ladder.rungs;
        auto candidate = best_;
        if (way == Way::up) {
            const auto next = std::ranges::upper_bound(rungs, now);
            if (next == rungs.end())
                return false;
            candidate.*ladder.field = *next;
        } else {
            const auto next = std::ranges::lower_bound(rungs, now);
            if (next == rungs.begin())
                return false;
            candidate.*ladder.field = *(next - 1);
        }
        if (!gains(candidate, {.scene = ladder.scene, .kept_s = kept_s()}))
            return false;
        search_.forget();
        if (!gains(candidate, {.scene = ladder.scene,
                               .count = fresh_pairs,
                               .most_lost = 0,
                               .first = First::new_one,
                               .kept_s = kept_s()}))
            return false;
        best_ = candidate;
        return true;
    }

    bool gains(const Tuning& candidate, const Pairs& pairs) {
        const auto verdict = compare(best_, candidate, pairs);
        return verdict && verdict->is_clear(pairs.most_lost);
    }

    std::optional<Verdict> compare(const Tuning& old, const Tuning& candidate, const Pairs& pairs) {
        ++outcome_.compared;
        Verdict verdict;
        while (verdict.ratios.size() < pairs.count && verdict.lost() <= pairs.most_lost) {
            if (search_.stop() || left_s() <= pairs.kept_s)
                return std::nullopt;
            // In turn first, so that neither has the drive's better moments.
            const bool even = verdict.ratios.size() % 2 == 0;
            const bool new_first = even == (pairs.first == First::new_one);
            const auto begin_s = search_.now_s();
            const auto one_s = timed_(new_first ? candidate : old, pairs.scene);
            const auto other_s = timed_(new_first ? old : candidate, pairs.scene);
            if (!one_s || !other_s)
                return std::nullopt;
            if (!verdict.ratios.empty())  // the first makes what it steps with
                longest_pair_s_ = std::max(longest_pair_s_, search_.now_s() - begin_s);
            verdict.ratios.push_back(new_first ? *other_s / *one_s : *one_s / *other_s);
        }
        return verdict;
    }

    /// Against the defaults, from fresh pairs: of many candidates the luckiest one looks good.
    void confirm() {
        std::vector<Verdict> verdicts(search_.scenes.size());
        for (const auto first : {First::old_one, First::new_one}) {
            search_.forget();
            for (std::size_t i = 0; i < verdicts.size(); ++i) {
                const auto verdict = compare(search_.defaults, best_,
                                             {.scene = search_.scenes[i],
                                              .count = fresh_pairs,
                                              .most_lost = fresh_pairs,
                                              .first = first});
                if (!verdict)
                    return;
                auto& all = verdicts[i].ratios;
                all.insert(all.end(), verdict->ratios.begin(), verdict->ratios.end());
            }
        }
        const auto loses = [](const Verdict& one) { return one.ratio() < least_tuning_ratio; };
        const auto is_clear = [](const Verdict& one) { return one.is_clear(0); };
        if (std::ranges::any_of(verdicts, loses) || std::ranges::none_of(verdicts, is_clear))
            return;
        outcome_.values = best_;
        for (const auto& verdict : verdicts)
            outcome_.gain = std::max(outcome_.gain, verdict.ratio());
    }

    const TuningSearch& search_;
    const TimedTuning& timed_;
    double began_s_;
    Tuning best_;
    double longest_pair_s_ = 0;
    TuningOutcome outcome_{.values = search_.defaults};
};

}  // namespace

TuningOutcome search_tuning(const TuningSearch& search, const TimedTuning& timed) {
    return Descent(search, timed).run();
}

}  // namespace spillway::engine
