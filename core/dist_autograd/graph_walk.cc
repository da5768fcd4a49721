#include "core/dist_autograd/graph_walk.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/status.h"

namespace psd::dist_autograd {

absl::Status GraphWalk::From(std::shared_ptr<Node> start) {
  const size_t recvs = context_.NumRecvs();
  if (found_ == recvs) return absl::OkStatus();  // all recv functions are known
  Visit(start.get());
  starts_.push_back(std::move(start));
  while (!open_.empty() && found_ < recvs) {
    Node* node = open_.back();
    open_.pop_back();
    if (node->RunsWithoutGradients()) {  // as receive functions do
      const auto* recv = dynamic_cast<const RecvFunction*>(node);
      if (recv != nullptr) PSD_RETURN_IF_ERROR(Found(*recv));
    }
    for (const Edge& edge : node->next()) {
      if (edge) Visit(edge.node.get());
    }
  }
  return absl::OkStatus();
}

void GraphWalk::Visit(Node* node) {
  if (visited_.Insert(node).second) open_.push_back(node);
}

absl::Status GraphWalk::Found(const RecvFunction& recv) {
  if (recv.context() != context_.id())
    return absl::OkStatus();  // the pass fails when it gets there
  ++found_;
  if (recv.message().incarnation == self_) {
    PSD_RETURN_IF_ERROR(FollowOwn(recv.message()));
  } else {
    receives_.push_back(&recv);
  }
  if (upstream_ == Upstream::kIgnore || FaultOn("upstream_not_followed")) return absl::OkStatus();
  for (GlobalId message : recv.upstream()) PSD_RETURN_IF_ERROR(FollowOwn(message));
  return absl::OkStatus();
}

absl::Status GraphWalk::FollowOwn(GlobalId message) {
  if (!own_.insert(message).second) return absl::OkStatus();
  auto send = context_.FindSend(message);
  if (!send.ok()) return absl::InvalidArgumentError(send.status().message());
  own_messages_.push_back(message);
  Visit(send->get());
  starts_.push_back(*std::move(send));
  return absl::OkStatus();
}

}  // namespace psd::dist_autograd
