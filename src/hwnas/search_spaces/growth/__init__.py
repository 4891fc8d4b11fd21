"""Growth of networks: a larger network starts with the function of a smaller one."""

from hwnas.search_spaces.growth.growth_plan import GrowthPlan, plan_growth
from hwnas.search_spaces.growth.network_growth import NetworkGrowth

__all__ = ["GrowthPlan", "NetworkGrowth", "plan_growth"]
