#pragma once

// Rprop (Riedmiller, Braun, "A direct adaptive method for faster backpropagation learning", 1993).
//
// Per element, with parameter w, gradient g, previous gradient p and step size z, as PyTorch's:
//   g <- -g if maximize
//   z <- z * f clamped to [step_size_min, step_size_max], where f = etaplus if g * p > 0,
//        etaminus if g * p < 0, else 1;  g <- 0 if g * p < 0
//   w <- w - sign(g) * z;  p <- g
// So an element whose gradient changes its sign does not move in that step.

#include "kernels/optim/arrays.h"

namespace psd::kernels {

struct RpropOptions {
  double etaminus = 0.5;
  double etaplus = 1.2;
  double step_size_min = 1e-6;
  double step_size_max = 50;
  bool maximize = false;
};

// Takes one step, on the calling thread. State arrays: p, which starts at 0, and z, which starts at
// the learning rate. The instruction set is chosen at run time; an element's result does not depend
// on its position.
void RpropStep(const RpropOptions& options, const OptimBatch& batch);

}  // namespace psd::kernels
