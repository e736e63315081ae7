"""The publications behind the methods."""

from fedpoint.core.algorithm import Reference

MCMAHAN = Reference(
    "mcmahan2017communication",
    "McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and Agüera y Arcas, Blaise",
    "Communication-efficient learning of deep networks from decentralized data",
    "Artificial Intelligence and Statistics",
    2017,
)
RIZK = Reference(
    "rizk2022federated",
    "Rizk, Elsa and Vlaski, Stefan and Sayed, Ali H.",
    "Federated learning under importance sampling",
    "IEEE Transactions on Signal Processing",
    2022,
    "article",
)
LI_CONVERGENCE = Reference(
    "li2020convergence",
    "Li, Xiang and Huang, Kaixuan and Yang, Wenhao and Wang, Shusen and Zhang, Zhihua",
    "On the convergence of FedAvg on non-IID data",
    "International Conference on Learning Representations",
    2020,
)
LI_PROX = Reference(
    "li2020federated",
    "Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and Smith, Virginia",
    "Federated optimization in heterogeneous networks",
    "Machine Learning and Systems",
    2020,
)
WANG_NOVA = Reference(
    "wang2020tackling",
    "Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent",
    "Tackling the objective inconsistency problem in heterogeneous federated optimization",
    "Advances in Neural Information Processing Systems",
    2020,
)
KARIMIREDDY = Reference(
    "karimireddy2020scaffold",
    "Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank and Stich, Sebastian and "
    "Suresh, Ananda Theertha",
    "SCAFFOLD: stochastic controlled averaging for federated learning",
    "International Conference on Machine Learning",
    2020,
)
MISHCHENKO = Reference(
    "mishchenko2022proxskip",
    "Mishchenko, Konstantin and Malinovsky, Grigory and Stich, Sebastian and Richtárik, Peter",
    "ProxSkip: yes! Local gradient steps provably lead to communication acceleration! Finally!",
    "International Conference on Machine Learning",
    2022,
)
MANGOLD = Reference(
    "mangold2024scafflsa",
    "Mangold, Paul and Samsonov, Sergey and Labbi, Safwan and Levin, Ilya and Alami, Reda and Naumov, Alexey and "
    "Moulines, Eric",
    "SCAFFLSA: taming heterogeneity in federated linear stochastic approximation and TD learning",
    "Advances in Neural Information Processing Systems",
    2024,
)
DOAN = Reference(
    "doan2020local",
    "Doan, Thinh T.",
    "Local stochastic approximation: a unified view of federated learning and distributed multi-task reinforcement "
    "learning algorithms",
    "arXiv preprint arXiv:2006.13460",
    2020,
    "misc",
)
SARCHESHMEH = Reference(
    "sarcheshmeh2023clustered",
    "SarcheshmehPour, Yasmin and Tian, Yu and Zhang, Linli and Jung, Alexander",
    "Clustered federated learning via generalized total variation minimization",
    "IEEE Transactions on Signal Processing",
    2023,
    "article",
)
LI_FAIR = Reference(
    "li2020fair",
    "Li, Tian and Sanjabi, Maziar and Beirami, Ahmad and Smith, Virginia",
    "Fair resource allocation in federated learning",
    "International Conference on Learning Representations",
    2020,
)
REDDI = Reference(
    "reddi2021adaptive",
    "Reddi, Sashank and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, Keith and "
    "Konečný, Jakub and Kumar, Sanjiv and McMahan, H. Brendan",
    "Adaptive federated optimization",
    "International Conference on Learning Representations",
    2021,
)
POLYAK = Reference(
    "polyak1992acceleration",
    "Polyak, Boris T. and Juditsky, Anatoli B.",
    "Acceleration of stochastic approximation by averaging",
    "SIAM Journal on Control and Optimization",
    1992,
    "article",
)
DIEULEVEUT = Reference(
    "dieuleveut2020bridging",
    "Dieuleveut, Aymeric and Durmus, Alain and Bach, Francis",
    "Bridging the gap between constant step size stochastic gradient descent and Markov chains",
    "Annals of Statistics",
    2020,
    "article",
)
HSU = Reference(
    "hsu2019measuring",
    "Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew",
    "Measuring the effects of non-identical data distribution for federated visual classification",
    "arXiv preprint",
    2019,
    "misc",
)
