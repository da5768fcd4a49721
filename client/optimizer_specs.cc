// Converts the option structs of the optimizers to OptimizerSpecs.

#include "client/psd.h"

namespace psd {

Sgd::operator OptimizerSpec() const {
  return {"sgd",
          {{"lr", lr},
           {"momentum", momentum},
           {"dampening", dampening},
           {"weight_decay", weight_decay},
           {"nesterov", nesterov},
           {"maximize", maximize},
           {"stochastic_rounding", stochastic_rounding}}};
}

Adagrad::operator OptimizerSpec() const {
  return {"adagrad",
          {{"lr", lr},
           {"lr_decay", lr_decay},
           {"weight_decay", weight_decay},
           {"initial_accumulator_value", initial_accumulator_value},
           {"eps", eps},
           {"maximize", maximize},
           {"stochastic_rounding", stochastic_rounding}}};
}

Adam::operator OptimizerSpec() const {
  return {"adam",
          {{"lr", lr},
           {"beta1", beta1},
           {"beta2", beta2},
           {"eps", eps},
           {"weight_decay", weight_decay},
           {"amsgrad", amsgrad},
           {"maximize", maximize},
           {"stochastic_rounding", stochastic_rounding}}};
}

AdamW::operator OptimizerSpec() const {
  OptimizerSpec spec =
      Adam{lr, beta1, beta2, eps, weight_decay, amsgrad, maximize, stochastic_rounding};
  spec.type = "adamw";
  return spec;
}

SparseAdam::operator OptimizerSpec() const {
  return {"sparse_adam",
          {{"lr", lr}, {"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"maximize", maximize}}};
}

RowwiseAdagrad::operator OptimizerSpec() const {
  return {"rowwise_adagrad",
          {{"lr", lr},
           {"lr_decay", lr_decay},
           {"initial_accumulator_value", initial_accumulator_value},
           {"eps", eps},
           {"maximize", maximize}}};
}

Adamax::operator OptimizerSpec() const {
  return {"adamax",
          {{"lr", lr},
           {"beta1", beta1},
           {"beta2", beta2},
           {"eps", eps},
           {"weight_decay", weight_decay},
           {"maximize", maximize},
           {"stochastic_rounding", stochastic_rounding}}};
}

Adadelta::operator OptimizerSpec() const {
  return {"adadelta",
          {{"lr", lr},
           {"rho", rho},
           {"eps", eps},
           {"weight_decay", weight_decay},
           {"maximize", maximize},
           {"stochastic_rounding", stochastic_rounding}}};
}

RmsProp::operator OptimizerSpec() const {
  return {"rmsprop",
          {{"lr", lr},
           {"alpha", alpha},
           {"eps", eps},
           {"weight_decay", weight_decay},
           {"momentum", momentum},
           {"centered", centered},
           {"maximize", maximize},
           {"stochastic_rounding", stochastic_rounding}}};
}

Rprop::operator OptimizerSpec() const {
  return {"rprop",
          {{"lr", lr},
           {"etaminus", etaminus},
           {"etaplus", etaplus},
           {"step_size_min", step_size_min},
           {"step_size_max", step_size_max},
           {"maximize", maximize},
           {"stochastic_rounding", stochastic_rounding}}};
}

}  // namespace psd
