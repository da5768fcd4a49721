#pragma once

// All differentiable operators.

#include "core/autograd/functions/activations.h"  // IWYU pragma: export
#include "core/autograd/functions/arithmetic.h"   // IWYU pragma: export
#include "core/autograd/functions/embedding.h"    // IWYU pragma: export
#include "core/autograd/functions/losses.h"       // IWYU pragma: export
#include "core/autograd/functions/products.h"     // IWYU pragma: export
#include "core/autograd/functions/reductions.h"   // IWYU pragma: export
#include "core/autograd/functions/shapes.h"       // IWYU pragma: export
