// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/engine/model/gpt2_reference.h"

#include <cmath>
#include <numbers>
#include <random>
#include <utility>

namespace spillway::testing {
namespace {

constexpr double epsilon = 1e-5;

/// y = x w^T + b; x [rows, inputs], w [outputs, inputs].
Doubles linear(const Doubles& x, const Doubles& w, const Doubles& b, std::size_t outputs,
               std::size_t inputs) {
    const std::size_t rows = x.size() / inputs;
    Doubles y(rows * outputs);
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t o = 0; o < outputs; ++o) {
            double sum = b.empty() ? 0.0 : b[o];
            for (std::size_t i = 0; i < inputs; ++i)
                sum += x[r * inputs + i] * w[o * inputs + i];
            y[r * outputs + o] = sum;
        }
    return y;
}

/// Returns dx; adds to dw and, if there is a bias, db.
Doubles linear_backward(const Doubles& dy, const Doubles& x, const Doubles& w, Doubles& dw,
                        Doubles* db, std::size_t outputs, std::size_t inputs) {
    const std::size_t rows = x.size() / inputs;
    Doubles dx(x.size(), 0.0);
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t o = 0; o < outputs; ++o) {
            const double g = dy[r * outputs + o];
            if (db != nullptr)
                (*db)[o] += g;
            for (std::size_t i = 0; i < inputs; ++i) {
                dx[r * inputs + i] += g * w[o * inputs + i];
                dw[o * inputs + i] += g * x[r * inputs + i];
            }
        }
    return dx;
}

struct Moments {
    double mean = 0, deviation = 0;
};

Moments moments(const Doubles& x, std::size_t row, std::size_t n) {
    Moments m;
    for (std::size_t i = 0; i < n; ++i)
        m.mean += x[row * n + i] / static_cast<double>(n);
    double variance = 0;
    for (std::size_t i = 0; i < n; ++i)
        variance += std::pow(x[row * n + i] - m.mean, 2) / static_cast<double>(n);
    m.deviation = std::sqrt(variance + epsilon);
    return m;
}

Doubles norm(const Doubles& x, const Doubles& w, const Doubles& b) {
    const std::size_t n = w.size();
    Doubles y(x.size());
    for (std::size_t r = 0; r < x.size() / n; ++r) {
        const Moments m = moments(x, r, n);
        for (std::size_t i = 0; i < n; ++i)
            y[r * n + i] = (x[r * n + i] - m.mean) / m.deviation * w[i] + b[i];
    }
    return y;
}

Doubles norm_backward(const Doubles& dy, const Doubles& x, const Doubles& w, Doubles& dw,
                      Doubles& db) {
    const std::size_t n = w.size();
    Doubles dx(x.size());
    for (std::size_t r = 0; r < x.size() / n; ++r) {
        const Moments m = moments(x, r, n);
        double mean_g = 0;
        double mean_gn = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const double normal = (x[r * n + i] - m.mean) / m.deviation;
            dw[i] += dy[r * n + i] * normal;
            db[i] += dy[r * n + i];
            mean_g += dy[r * n + i] * w[i] / static_cast<double>(n);
            mean_gn += dy[r * n + i] * w[i] * normal / static_cast<double>(n);
        }
        for (std::size_t i = 0; i < n; ++i) {
            const double normal = (x[r * n + i] - m.mean) / m.deviation;
            dx[r * n + i] = (dy[r * n + i] * w[i] - mean_g - normal * mean_gn) / m.deviation;
        }
    }
    return dx;
}

constexpr double gelu_slope = 0.7978845608028654;  // sqrt(2 / pi)

double gelu(double x) {
    return 0.5 * x * (1.0 + std::tanh(gelu_slope * (x + 0.044715 * x * x * x)));
}

double gelu_derivative(double x) {
    const double t = std::tanh(gelu_slope * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * gelu_slope * (1.0 + 3.0 * 0.044715 * x * x);
}

void add_to(Doubles& a, const Doubles& b) {
    for (std::size_t i = 0; i < a.size(); ++i)
        a[i] += b[i];
}

/// Probabilities of one query over the keys up to its own.
Doubles softmax(Doubles scores) {
    double largest = scores[0];
    for (const double s : scores)
        largest = std::max(largest, s);
    double sum = 0;
    for (double& s : scores)
        sum += s = std::exp(s - largest);
    for (double& s : scores)
        s /= sum;
    return scores;
}

/// Features of one head inside rows of `stride`, from `at` on.
struct Columns {
    std::size_t at, stride, size;
};

double row_dot(const Doubles& a, const Columns& ca, std::size_t ra, const Doubles& b,
               const Columns& cb, std::size_t rb) {
    double sum = 0;
    for (std::size_t i = 0; i < ca.size; ++i)
        sum += a[ra * ca.stride + ca.at + i] * b[rb * cb.stride + cb.at + i];
    return sum;
}

void row_add(Doubles& a, const Columns& ca, std::size_t ra, double factor, const Doubles& b,
             const Columns& cb, std::size_t rb) {
    for (std::size_t i = 0; i < ca.size; ++i)
        a[ra * ca.stride + ca.at + i] += factor * b[rb * cb.stride + cb.at + i];
}

struct HeadColumns {
    Columns q, k, v, out;
    double scale;
};

HeadColumns head_columns(std::size_t hidden, std::size_t heads, std::size_t head) {
    const std::size_t size = hidden / heads;
    return {{head * size, 3 * hidden, size},
            {hidden + head * size, 3 * hidden, size},
            {2 * hidden + head * size, 3 * hidden, size},
            {head * size, hidden, size},
            1.0 / std::sqrt(static_cast<double>(size))};
}

Doubles head_probabilities(const Doubles& qkv, const HeadColumns& c, std::size_t query) {
    Doubles scores(query + 1);
    for (std::size_t key = 0; key <= query; ++key)
        scores[key] = c.scale * row_dot(qkv, c.q, query, qkv, c.k, key);
    return softmax(std::move(scores));
}

Doubles attend(const Doubles& qkv, std::size_t hidden, std::size_t heads) {
    const std::size_t tokens = qkv.size() / (3 * hidden);
    Doubles out(tokens * hidden, 0.0);
    for (std::size_t head = 0; head < heads; ++head) {
        const HeadColumns c = head_columns(hidden, heads, head);
        for (std::size_t query = 0; query < tokens; ++query) {
            const Doubles p = head_probabilities(qkv, c, query);
            for (std::size_t key = 0; key <= query; ++key)
                row_add(out, c.out, query, p[key], qkv, c.v, key);
        }
    }
    return out;
}

Doubles attend_backward(const Doubles& dout, const Doubles& qkv, std::size_t hidden,
                        std::size_t heads) {
    const std::size_t tokens = qkv.size() / (3 * hidden);
    Doubles dqkv(qkv.size(), 0.0);
    for (std::size_t head = 0; head < heads; ++head) {
        const HeadColumns c = head_columns(hidden, heads, head);
        for (std::size_t query = 0; query < tokens; ++query) {
            const Doubles p = head_probabilities(qkv, c, query);
            Doubles dp(query + 1);
            double projection = 0;
            for (std::size_t key = 0; key <= query; ++key) {
                dp[key] = row_dot(dout, c.out, query, qkv, c.v, key);
                projection += p[key] * dp[key];
                row_add(dqkv, c.v, key, p[key], dout, c.out, query);
            }
            for (std::size_t key = 0; key <= query; ++key) {
                const double ds = p[key] * (dp[key] - projection) * c.scale;
                row_add(dqkv, c.q, query, ds, qkv, c.k, key);
                row_add(dqkv, c.k, key, ds, qkv, c.q, query);
            }
        }
    }
    return dqkv;
}

constexpr std::size_t first_block = 2;
constexpr std::size_t per_block = 12;

}  // namespace

struct Gpt2Reference::LayerCache {
    Doubles x, normal_1, qkv, attended, middle, normal_2, up, activated;
};

struct Gpt2Reference::SequenceCache {
    std::vector<LayerCache> layers;
    Doubles last, normal, logits;
};

Gpt2Reference::Gpt2Reference(const engine::Gpt2Config& config, std::vector<Doubles> tensors)
    : config_(config), tensors_(std::move(tensors)) {}

Doubles Gpt2Reference::layer_forward(std::size_t layer, const Doubles& x, LayerCache& c) const {
    const Doubles* t = &tensors_[first_block + layer * per_block];
    const std::size_t h = config_.hidden;
    c.x = x;
    c.normal_1 = norm(x, t[0], t[1]);
    c.qkv = linear(c.normal_1, t[2], t[3], 3 * h, h);
    c.attended = attend(c.qkv, h, config_.heads);
    c.middle = linear(c.attended, t[4], t[5], h, h);
    add_to(c.middle, x);
    c.normal_2 = norm(c.middle, t[6], t[7]);
    c.up = linear(c.normal_2, t[8], t[9], config_.feed_forward, h);
    c.activated.clear();
    for (const double u : c.up)
        c.activated.push_back(gelu(u));
    Doubles y = linear(c.activated, t[10], t[11], h, config_.feed_forward);
    add_to(y, c.middle);
    return y;
}

Doubles Gpt2Reference::layer_backward(std::size_t layer, const LayerCache& c, Doubles gradient,
                                      std::vector<Doubles>& gradients) const {
    const Doubles* t = &tensors_[first_block + layer * per_block];
    Doubles* g = &gradients[first_block + layer * per_block];
    const std::size_t h = config_.hidden;
    const std::size_t f = config_.feed_forward;
    Doubles up = linear_backward(gradient, c.activated, t[10], g[10], &g[11], h, f);
    for (std::size_t i = 0; i < up.size(); ++i)
        up[i] *= gelu_derivative(c.up[i]);
    const Doubles normal_2 = linear_backward(up, c.normal_2, t[8], g[8], &g[9], f, h);
    add_to(gradient, norm_backward(normal_2, c.middle, t[6], g[6], g[7]));
    const Doubles attended = linear_backward(gradient, c.attended, t[4], g[4], &g[5], h, h);
    const Doubles qkv = attend_backward(attended, c.qkv, h, config_.heads);
    const Doubles normal_1 = linear_backward(qkv, c.normal_1, t[2], g[2], &g[3], 3 * h, h);
    add_to(gradient, norm_backward(normal_1, c.x, t[0], g[0], g[1]));
    return gradient;
}

Gpt2Reference::SequenceCache Gpt2Reference::forward(std::span<const std::int32_t> tokens) const {
    const std::size_t h = config_.hidden;
    SequenceCache cache;
    cache.layers.resize(config_.layers);
    Doubles x(tokens.size() * h);
    for (std::size_t token = 0; token < tokens.size(); ++token)
        for (std::size_t i = 0; i < h; ++i)
            x[token * h + i] = tensors_[0][static_cast<std::size_t>(tokens[token]) * h + i] +
                               tensors_[1][token * h + i];
    for (std::size_t layer = 0; layer < config_.layers; ++layer)
        x = layer_forward(layer, x, cache.layers[layer]);
    cache.last = x;
    cache.normal = norm(x, tensors_[tensors_.size() - 2], tensors_.back());
    cache.logits = linear(cache.normal, tensors_[0], {}, config_.vocabulary, h);
    return cache;
}

void Gpt2Reference::backward(const SequenceCache& cache, std::span<const std::int32_t> tokens,
                             double scale, std::vector<Doubles>& gradients) const {
    const std::size_t h = config_.hidden;
    const std::size_t v = config_.vocabulary;
    const std::size_t count = tokens.size() - 1;
    Doubles logits;
    for (std::size_t token = 0; token < count; ++token) {
        const auto row = cache.logits.begin() + static_cast<std::ptrdiff_t>(token * v);
        Doubles p = softmax({row, row + static_cast<std::ptrdiff_t>(v)});
        p[static_cast<std::size_t>(tokens[token + 1])] -= 1.0;
        for (const double value : p)
            logits.push_back(value * scale);
    }
    const Doubles normal =
        linear_backward(logits, cache.normal, tensors_[0], gradients[0], nullptr, v, h);
    const std::size_t last = tensors_.size() - 1;
    Doubles x =
        norm_backward(normal, cache.last, tensors_[last - 1], gradients[last - 1], gradients[last]);
    for (std::size_t layer = config_.layers; layer-- > 0;)
        x = layer_backward(layer, cache.layers[layer], std::move(x), gradients);
    for (std::size_t token = 0; token < count; ++token)
        for (std::size_t i = 0; i < h; ++i) {
            gradients[0][static_cast<std::size_t>(tokens[token]) * h + i] += x[token * h + i];
            gradients[1][token * h + i] += x[token * h + i];
        }
}

Gpt2Reference::Pass Gpt2Reference::train(std::span<const std::int32_t> tokens,
                                         std::size_t sequences) const {
    const std::size_t stride = tokens.size() / sequences;
    const std::size_t v = config_.vocabulary;
    const double scale = 1.0 / static_cast<double>(sequences * (stride - 1));
    Pass pass;
    for (const Doubles& tensor : tensors_)
        pass.gradients.emplace_back(tensor.size(), 0.0);
    for (std::size_t s = 0; s < sequences; ++s) {
        const auto sequence = tokens.subspan(s * stride, stride);
        const SequenceCache cache = forward(sequence.first(stride - 1));
        for (std::size_t token = 0; token + 1 < stride; ++token) {
            const auto row = cache.logits.begin() + static_cast<std::ptrdiff_t>(token * v);
            const Doubles p = softmax({row, row + static_cast<std::ptrdiff_t>(v)});
            pass.loss -= scale * std::log(p[static_cast<std::size_t>(sequence[token + 1])]);
        }
        backward(cache, sequence, scale, pass.gradients);
    }
    return pass;
}

double Gpt2Reference::loss(std::span<const std::int32_t> tokens, std::size_t sequences) const {
    const std::size_t stride = tokens.size() / sequences;
    const std::size_t v = config_.vocabulary;
    double loss = 0;
    for (std::size_t s = 0; s < sequences; ++s) {
        const auto sequence = tokens.subspan(s * stride, stride);
        const SequenceCache cache = forward(sequence.first(stride - 1));
        for (std::size_t token = 0; token + 1 < stride; ++token) {
            const auto row = cache.logits.begin() + static_cast<std::ptrdiff_t>(token * v);
            const Doubles p = softmax({row, row + static_cast<std::ptrdiff_t>(v)});
            loss -= std::log(p[static_cast<std::size_t>(sequence[token + 1])]);
        }
    }
    return loss / static_cast<double>(sequences * (stride - 1));
}

Doubles Gpt2Reference::next_token_logits(std::span<const std::int32_t> tokens) const {
    const SequenceCache cache = forward(tokens);
    return {cache.logits.end() - static_cast<std::ptrdiff_t>(config_.vocabulary),
            cache.logits.end()};
}

Gpt2Reference reference_of(const engine::Gpt2Config& config,
                           const std::vector<std::vector<float>>& weights) {
    std::vector<Doubles> tensors;
    for (const auto& tensor : weights)
        tensors.emplace_back(tensor.begin(), tensor.end());
    return {config, std::move(tensors)};
}

std::vector<std::int32_t> random_tokens(const engine::Gpt2Config& config, std::size_t count) {
    std::mt19937 random(7);
    std::uniform_int_distribution<std::int32_t> any(
        0, static_cast<std::int32_t>(config.vocabulary) - 1);
    std::vector<std::int32_t> tokens(count);
    for (auto& token : tokens)
        token = any(random);
    return tokens;
}

}  // namespace spillway::testing
