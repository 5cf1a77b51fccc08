// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cpu_optim/adafactor.h"
#include "cpu_optim/elementwise.h"
#include "cpu_optim/layerwise.h"

/// The hyper-parameters of each optimizer by the names that every language gives them.
namespace spillway::integrations {

/// each(NAME, FIELD) for every field. Fields are doubles, optional doubles or two-valued enums,
/// whose second value is the flag's 1; Adam's `decay` alone is no flag, but tells Adam from AdamW.
template <class Each>
void for_each_field(cpu_optim::AdamHyperParameters& hyper, Each&& each) {
    each("learning_rate", hyper.learning_rate);
    each("beta1", hyper.beta1);
    each("beta2", hyper.beta2);
    each("epsilon", hyper.epsilon);
    each("weight_decay", hyper.weight_decay);
    each("decay", hyper.decay);
    each("amsgrad", hyper.amsgrad);
    each("maximise", hyper.objective);
    each("nesterov", hyper.nesterov);
    each("momentum_decay", hyper.momentum_decay);
}

template <class Each>
void for_each_field(cpu_optim::SgdHyperParameters& hyper, Each&& each) {
    each("learning_rate", hyper.learning_rate);
    each("momentum", hyper.momentum);
    each("dampening", hyper.dampening);
    each("weight_decay", hyper.weight_decay);
    each("nesterov", hyper.nesterov);
    each("maximise", hyper.objective);
}

template <class Each>
void for_each_field(cpu_optim::AdagradHyperParameters& hyper, Each&& each) {
    each("learning_rate", hyper.learning_rate);
    each("learning_rate_decay", hyper.learning_rate_decay);
    each("weight_decay", hyper.weight_decay);
    each("initial_accumulator_value", hyper.initial_accumulator_value);
    each("epsilon", hyper.epsilon);
    each("maximise", hyper.objective);
}

template <class Each>
void for_each_field(cpu_optim::LionHyperParameters& hyper, Each&& each) {
    each("learning_rate", hyper.learning_rate);
    each("beta1", hyper.beta1);
    each("beta2", hyper.beta2);
    each("weight_decay", hyper.weight_decay);
    each("maximise", hyper.objective);
}

template <class Each>
void for_each_field(cpu_optim::RmspropHyperParameters& hyper, Each&& each) {
    each("learning_rate", hyper.learning_rate);
    each("alpha", hyper.alpha);
    each("epsilon", hyper.epsilon);
    each("weight_decay", hyper.weight_decay);
    each("momentum", hyper.momentum);
    each("centred", hyper.centred);
    each("maximise", hyper.objective);
}

template <class Each>
void for_each_field(cpu_optim::LambHyperParameters& hyper, Each&& each) {
    each("learning_rate", hyper.learning_rate);
    each("beta1", hyper.beta1);
    each("beta2", hyper.beta2);
    each("epsilon", hyper.epsilon);
    each("weight_decay", hyper.weight_decay);
    each("least_weight_norm", hyper.least_weight_norm);
    each("most_weight_norm", hyper.most_weight_norm);
    each("maximise", hyper.objective);
}

template <class Each>
void for_each_field(cpu_optim::LarsHyperParameters& hyper, Each&& each) {
    each("learning_rate", hyper.learning_rate);
    each("momentum", hyper.momentum);
    each("weight_decay", hyper.weight_decay);
    each("trust_coefficient", hyper.trust_coefficient);
    each("maximise", hyper.objective);
}

template <class Each>
void for_each_field(cpu_optim::AdafactorHyperParameters& hyper, Each&& each) {
    each("learning_rate", hyper.learning_rate);
    each("beta2_decay", hyper.beta2_decay);
    each("epsilon1", hyper.epsilon1);
    each("epsilon2", hyper.epsilon2);
    each("clip_threshold", hyper.clip_threshold);
    each("weight_decay", hyper.weight_decay);
    each("maximise", hyper.objective);
}

}  // namespace spillway::integrations
