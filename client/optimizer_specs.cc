// The options of the optimizers as specs.

#include "client/psd.h"

namespace psd {

Sgd::operator OptimizerSpec() const {
  return {"sgd",
          {{"lr", lr},
           {"momentum", momentum},
           {"dampening", dampening},
           {"weight_decay", weight_decay},
           {"nesterov", nesterov},
           {"maximize", maximize}}};
}

Adam::operator OptimizerSpec() const {
  return {"adam",
          {{"lr", lr},
           {"beta1", beta1},
           {"beta2", beta2},
           {"eps", eps},
           {"weight_decay", weight_decay},
           {"amsgrad", amsgrad},
           {"maximize", maximize}}};
}

AdamW::operator OptimizerSpec() const {
  OptimizerSpec spec = Adam{lr, beta1, beta2, eps, weight_decay, amsgrad, maximize};
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

}  // namespace psd
