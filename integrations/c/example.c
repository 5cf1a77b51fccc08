// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Fits y = W x + b by AdamW with the optimizer's state on a drive, commits half-way, is opened
// again and goes on; the end must be the bits of an uninterrupted run.
//
//     spillway_c_example FOLDER      an existing, empty folder on the drive

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "integrations/c/spillway.h"

enum { inputs = 1024, outputs = 1024, samples = 8, total_steps = 12, commit_step = 5 };
enum { weight_tensor = 0, bias_tensor = 1 };

typedef struct {
    float weight[outputs * inputs];
    float bias[outputs];
} model;

typedef struct {
    model gradient;
    float error[outputs];
    uint64_t random;
} scratch;

static void check(spillway_status status, const spillway_optimizer* optimizer, const char* what) {
    if (status == SPILLWAY_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, spillway_status_text(status),
            spillway_last_error(optimizer));
    exit(1);
}

// Uniform in [-1, 1): the top 24 bits of a linear congruential generator (Knuth, MMIX).
static float uniform(uint64_t* state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / 8388608.0f - 1.0f;
}

// The loss of one step's samples, and its gradient. Step number and nothing else chooses samples.
static double loss_and_gradient(const model* now, scratch* work, uint64_t step) {
    double loss = 0;
    memset(&work->gradient, 0, sizeof work->gradient);
    work->random = step;
    for (int sample = 0; sample < samples; ++sample) {
        float x[inputs];
        for (int i = 0; i < inputs; ++i)
            x[i] = uniform(&work->random);
        for (int o = 0; o < outputs; ++o) {
            float y = now->bias[o];
            for (int i = 0; i < inputs; ++i)
                y += now->weight[o * inputs + i] * x[i];
            const float error =
                y - (x[o] + 0.5f);  // what is to be learnt: the first inputs, plus 1/2
            loss += (double)error * error / (samples * outputs);
            work->gradient.bias[o] += 2 * error / (samples * outputs);
            for (int i = 0; i < inputs; ++i)
                work->gradient.weight[o * inputs + i] += 2 * error * x[i] / (samples * outputs);
        }
    }
    return loss;
}

// `out` NULL: a run without commits.
static spillway_optimizer* open_optimizer(model* weights, const char* drive, const char* out) {
    static const uint64_t weight_shape[] = {outputs, inputs};
    static const uint64_t bias_shape[] = {outputs};
    spillway_parameter parameters[2];
    spillway_group groups[2];
    spillway_options options;
    spillway_optimizer* optimizer = NULL;

    for (int i = 0; i < 2; ++i) {
        check(spillway_parameter_init(&parameters[i], sizeof parameters[i]), NULL, "parameter");
        check(spillway_group_init(&groups[i], sizeof groups[i], SPILLWAY_ADAMW), NULL, "group");
        parameters[i].group = (uint32_t)i;
    }
    parameters[weight_tensor].name = "weight";
    parameters[weight_tensor].shape = weight_shape;
    parameters[weight_tensor].dimensions = 2;
    parameters[weight_tensor].data = weights->weight;
    parameters[bias_tensor].name = "bias";
    parameters[bias_tensor].shape = bias_shape;
    parameters[bias_tensor].dimensions = 1;
    parameters[bias_tensor].data = weights->bias;
    groups[weight_tensor].learning_rate = 1e-4;
    groups[bias_tensor].learning_rate = 0.05;
    groups[bias_tensor].weight_decay = 0;

    check(spillway_options_init(&options, sizeof options), NULL, "options");
    options.host_bytes = UINT64_C(8) << 20;  // the state, 8.4 MB, and staging would take more
    options.nvme = drive;
    options.out = out;
    check(spillway_optimizer_create(parameters, 2, groups, 2, &options, &optimizer), NULL,
          "create");
    return optimizer;
}

static void train(spillway_optimizer* optimizer, model* now, scratch* work, uint64_t from,
                  uint64_t to) {
    for (uint64_t step = from; step < to; ++step) {
        spillway_step_rule rule;
        spillway_step_report report;
        const double loss = loss_and_gradient(now, work, step);
        check(spillway_give_gradient(optimizer, weight_tensor, work->gradient.weight,
                                     outputs * inputs, SPILLWAY_GRADIENT_FP32),
              optimizer, "gradient of the weight");
        check(spillway_give_gradient(optimizer, bias_tensor, work->gradient.bias, outputs,
                                     SPILLWAY_GRADIENT_FP32),
              optimizer, "gradient of the bias");
        check(spillway_step_rule_init(&rule, sizeof rule), NULL, "rule");
        rule.clip = 1;
        rule.max_norm = 0.25;
        rule.nonfinite = SPILLWAY_NONFINITE_STOP;
        check(spillway_step_report_init(&report, sizeof report), NULL, "report");
        check(spillway_begin_step(optimizer, &rule, &report), optimizer, "step");
        check(spillway_wait(optimizer), optimizer, "wait");
        printf("step %2d  loss %.6f  norm %.6f\n", (int)step + 1, loss, report.norm);
    }
}

static void print_where_the_state_is(const spillway_optimizer* optimizer) {
    spillway_statistics now;
    check(spillway_statistics_init(&now, sizeof now), NULL, "statistics");
    check(spillway_get_statistics(optimizer, &now), optimizer, "statistics");
    printf("state on the drive: %llu of %llu bytes\n",
           (unsigned long long)(now.state_bytes - now.resident_state_bytes),
           (unsigned long long)now.state_bytes);
}

// Commits, closes, clears the weights, opens again and recovers them. Returns the optimizer; the
// number of the next step goes to *step.
static spillway_optimizer* reopen(spillway_optimizer* optimizer, model* now, const char* drive,
                                  const char* out, uint64_t* step) {
    int32_t found = 0;
    check(spillway_begin_commit(optimizer, commit_step, "half-way", 8), optimizer, "commit");
    check(spillway_wait(optimizer), optimizer, "wait for the commit");
    check(spillway_optimizer_destroy(optimizer), NULL, "destroy");
    memset(now, 0, sizeof *now);
    optimizer = open_optimizer(now, drive, out);
    check(spillway_recover(optimizer, &found, step), optimizer, "recover");
    if (!found) {
        fprintf(stderr, "there is no commit in %s\n", out);
        exit(1);
    }
    printf("resumed at step %d\n", (int)*step);
    return optimizer;
}

int main(int count, char** arguments) {
    static model straight, resumed;
    static scratch work;
    char out[1024], file[1024];
    uint64_t step = 0;
    if (count != 2 || strlen(arguments[1]) > sizeof out - 32) {
        fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
        return 2;
    }
    snprintf(out, sizeof out, "%s/run", arguments[1]);
    snprintf(file, sizeof file, "%s/model.safetensors", arguments[1]);

    spillway_optimizer* optimizer = open_optimizer(&straight, arguments[1], NULL);
    print_where_the_state_is(optimizer);
    train(optimizer, &straight, &work, 0, total_steps);
    check(spillway_optimizer_destroy(optimizer), NULL, "destroy");

    optimizer = open_optimizer(&resumed, arguments[1], out);
    train(optimizer, &resumed, &work, 0, commit_step);
    optimizer = reopen(optimizer, &resumed, arguments[1], out, &step);
    train(optimizer, &resumed, &work, step, total_steps);
    check(spillway_export_masters(optimizer, file, SPILLWAY_EXPORT_FP32), optimizer, "export");
    check(spillway_optimizer_destroy(optimizer), NULL, "destroy");

    if (memcmp(&straight, &resumed, sizeof straight) != 0) {
        fprintf(stderr, "the resumed weights differ from the uninterrupted run's\n");
        return 1;
    }
    printf("the resumed weights are bit-equal to the uninterrupted run's\n");
    return 0;
}
