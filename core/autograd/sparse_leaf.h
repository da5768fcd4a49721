#pragma once

// Rows of a leaf that were looked up: its gradient is sparse.

#include "core/autograd/node.h"
#include "core/autograd/variable.h"
#include "core/tensor/tensor.h"

namespace psd {

// `rows`, [the extents of ids, width], as the rows `ids` of the leaf [n, width]. A gradient of it
// goes to the pass's sink as entries at those ids (repeated ones too), so that neither the ids nor
// a dense gradient travel back.
// Requires: ids are i64 and in range.
Variable SparseLeaf(const LeafInfo& leaf, Tensor ids, Tensor rows);

}  // namespace psd
