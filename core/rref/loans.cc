#include "core/rref/loans.h"

namespace psd::rref {

bool Loans::Add(SessionKey receiver, GlobalId child) {
  if (ended_.Contains(receiver)) return false;
  if (sessions_[receiver].insert(child).second) ++size_;
  return true;
}

bool Loans::Return(SessionKey receiver, GlobalId child) {
  auto session = sessions_.find(receiver);
  if (session == sessions_.end() || session->second.erase(child) == 0) return false;
  if (session->second.empty()) sessions_.erase(session);
  --size_;
  return true;
}

std::vector<GlobalId> Loans::EndSession(SessionKey receiver) {
  ended_.Add(receiver);
  auto session = sessions_.find(receiver);
  if (session == sessions_.end()) return {};
  std::vector<GlobalId> children(session->second.begin(), session->second.end());
  size_ -= children.size();
  sessions_.erase(session);
  return children;
}

void Loans::Clear() {
  sessions_.clear();
  size_ = 0;
}

}  // namespace psd::rref
