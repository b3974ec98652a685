"""Proximal policy optimisation with an environment in NumPy: orthogonal initialisation, rollouts, minibatches."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
random = np.random.default_rng(0)


def layer(inputs, outputs, gain=2**0.5):
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.constant_(linear.bias, 0.0)
    return linear


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer(4, 256), nn.Tanh(), layer(256, 256), nn.Tanh(), layer(256, 1, 1.0))
        self.actor = nn.Sequential(layer(4, 256), nn.Tanh(), layer(256, 256), nn.Tanh(), layer(256, 2, 0.01))

    def act(self, x, action=None):
        policy = Categorical(logits=self.actor(x))
        action = policy.sample() if action is None else action
        return action, policy.log_prob(action), policy.entropy(), self.critic(x)


STEPS, ENVIRONMENTS = 64, 4
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
observations, actions = torch.zeros(STEPS, ENVIRONMENTS, 4), torch.zeros(STEPS, ENVIRONMENTS)
logprobs, rewards, values = (torch.zeros(STEPS, ENVIRONMENTS) for _ in range(3))
state = torch.Tensor(random.normal(size=(ENVIRONMENTS, 4)))
for _ in range(3):
    for step in range(STEPS):
        observations[step] = state
        with torch.no_grad():
            action, logprob, _, value = agent.act(state)
        values[step], actions[step], logprobs[step] = value.flatten(), action, logprob
        moved = 0.9 * state.cpu().numpy() + 0.1 * (action.cpu().numpy()[:, None] - 0.5) + random.normal(size=(4, 4))
        rewards[step] = torch.tensor(-np.abs(moved).sum(1))
        state = torch.Tensor(moved)
    advantages, last = torch.zeros_like(rewards), 0
    for t in reversed(range(STEPS - 1)):
        last = rewards[t] + 0.99 * values[t + 1] - values[t] + 0.99 * 0.95 * last
        advantages[t] = last
    flat = [part.flatten(0, 1) for part in (observations, actions, logprobs, advantages, advantages + values)]
    order = np.arange(STEPS * ENVIRONMENTS)
    for _ in range(2):
        random.shuffle(order)
        for at in np.split(order, 4):
            x, a, old, gain, target = (part[at] for part in flat)
            _, new, entropy, value = agent.act(x, a.long())
            ratio = (new - old).exp()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy_loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
            loss = policy_loss + 0.5 * (value.flatten() - target).square().mean() - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
