#include "core/rpc/session_types.h"

#include <memory>
#include <utility>

namespace psd::rpc {

void SendControl(LinkId link, Header header, Actions& actions) {
  auto action = std::make_unique<SendControlAction>();
  action->link = link;
  action->header = std::move(header);
  actions.push_back(std::move(action));
}

}  // namespace psd::rpc
