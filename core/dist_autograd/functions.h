#pragma once

// The graph nodes at the two ends of a message: the send function on the sender and the recv
// function on the receiver.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/autograd/node.h"
#include "core/autograd/variable.h"
#include "core/base/device.h"
#include "core/base/ids.h"

namespace psd::dist_autograd {

// The node for tensors that were sent. Gradients that come back from the receiver enter the local
// graph here, one input per tensor that requires grad. They are passed on as they came to nodes
// that compute nothing, such as leaves, and to all others on the device of the tensor. Hooks of a
// node see the gradient on that device, too. The devices must outlive the node.
class SendFunction : public ListNode {
 public:
  // Has an edge to each of `variables` that requires grad, in order.
  SendFunction(GlobalId message, const std::vector<Variable>& variables);
  // For leaves, which have no graph: no engine runs this node, and gradients are collected as they
  // arrive. `device` is the one that all leaves are on; null if they are on the host, or on
  // several. Requires: there is at least one leaf.
  SendFunction(GlobalId message, std::vector<LeafInfo> leaves, Device* device);

  absl::string_view Name() const override { return "Send"; }
  int NumInputs() const override { return static_cast<int>(sent_.size()); }
  // Errors: INVALID_ARGUMENT if no gradient at all is given, or a wrong number of them.
  absl::Status Apply(const PassContext& pass, absl::Span<Tensor> gradients,
                     absl::Span<Tensor> results) override;
  GlobalId message() const { return message_; }
  // One element per gradient if the node was made for leaves, otherwise empty.
  absl::Span<const LeafInfo> leaves() const {
    return leaves_ ? absl::MakeConstSpan(sent_) : absl::Span<const LeafInfo>();
  }
  // The device on which gradients are wanted: the one that has all tensors that require grad. Null
  // if there is no such device, or if all nodes behind this one take gradients on any device.
  Device* device() const { return device_; }
  // The size of the gradients if none is missing.
  size_t gradient_bytes() const;
  // Checks number, shape and dtype of gradients that have arrived. An undefined gradient means that
  // none came for that tensor, an empty list that none came at all. Errors: INVALID_ARGUMENT naming
  // the message, the gradient, and the expected and actual form.
  absl::Status CheckGradients(const Tensors& gradients) const;
  // Replaces undefined gradients by zeros.
  absl::Status FillZeros(Tensors& gradients) const;

 private:
  const GlobalId message_;
  const bool leaves_;
  std::vector<LeafInfo> sent_;  // keys and versions are set for leaves only
  // For each of these the device that it is on, where null is the host.
  // Empty for leaves.
  std::vector<Device*> devices_;
  Device* device_ = nullptr;
};

// The node for tensors that were received. It sends the gradients of all of them back to the sender
// in one message. Only a distributed pass can run it.
class RecvFunction : public Node {
 public:
  RecvFunction(GlobalId context, GlobalId message, std::string peer, int tensors,
               std::vector<GlobalId> upstream, bool foreign, bool takes_pieces);

  absl::string_view Name() const override { return "Recv"; }
  int NumInputs() const override { return tensors_; }
  // Errors: FAILED_PRECONDITION outside a distributed pass; those of the sink's Deliver.
  absl::Status Apply(const PassContext& pass, absl::Span<Tensor> gradients,
                     absl::Span<Tensor> results) override;
  // The sender waits for an answer to this message even if there are no gradients.
  bool RunsWithoutGradients() const override { return true; }

  GlobalId context() const { return context_; }
  // The id of the message. The sender made it, so its incarnation is the sender's.
  GlobalId message() const { return message_; }
  const std::string& peer() const { return peer_; }
  // The messages of *this* worker on which the received tensors depend directly, as the sender
  // reported. They receive gradients if this function does.
  const std::vector<GlobalId>& upstream() const { return upstream_; }
  // Whether the tensors also depend on messages of other workers. The sender must then be asked to
  // mark them.
  bool foreign() const { return foreign_; }
  // Whether the sender takes large gradients in pieces (core/device_pieces).
  bool takes_pieces() const { return takes_pieces_; }

 private:
  const GlobalId context_;
  const GlobalId message_;
  const std::string peer_;
  const int tensors_;
  const std::vector<GlobalId> upstream_;
  const bool foreign_;
  const bool takes_pieces_;
};

// The sink of a distributed pass. It takes the gradients of leaves and those for other workers.
class DistributedSink : public GradientSink {
 public:
  // Called once per recv function and pass. `gradients` has one element per tensor; an undefined
  // one means that there is no gradient.
  virtual absl::Status Deliver(const RecvFunction& recv, Tensors gradients) = 0;
};

}  // namespace psd::dist_autograd
