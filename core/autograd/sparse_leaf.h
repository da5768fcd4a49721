#pragma once

// A variable for rows of a leaf that were looked up. The leaf's gradient is sparse.

#include "core/autograd/node.h"
#include "core/autograd/variable.h"
#include "core/tensor/tensor.h"

namespace psd {

// Returns a variable with the elements `rows`, [the extents of ids, width], which are the rows
// `ids` of the leaf, [n, width]. Its gradient goes to the pass's sink as a sparse tensor with one
// entry for each id, including repeated ids. So neither the ids nor a dense gradient need to travel
// back. Requires: `ids` are i64, in range and on the host. The rows and their gradients may be on a
// device.
Variable SparseLeaf(const LeafInfo& leaf, Tensor ids, Tensor rows);

// Returns the leaf to which `node` gives gradients of rows, or null if SparseLeaf did not make it.
const LeafInfo* LeafOfRows(const Node& node);

}  // namespace psd
