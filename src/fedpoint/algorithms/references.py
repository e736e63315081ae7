"""The publications behind the methods."""

from fedpoint.core.reference import Reference

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
SAYED = Reference(
    "sayed2014adaptation",
    "Sayed, Ali H.",
    "Adaptation, learning, and optimization over networks",
    "Foundations and Trends in Machine Learning",
    2014,
    "article",
)
YUAN = Reference(
    "yuan2019exact",
    "Yuan, Kun and Ying, Bicheng and Zhao, Xiaochuan and Sayed, Ali H.",
    "Exact diffusion for distributed optimization and learning, part I: algorithm development",
    "IEEE Transactions on Signal Processing",
    2019,
    "article",
)
SHI = Reference(
    "shi2015extra",
    "Shi, Wei and Ling, Qing and Wu, Gang and Yin, Wotao",
    "EXTRA: an exact first-order algorithm for decentralized consensus optimization",
    "SIAM Journal on Optimization",
    2015,
    "article",
)
NEDIC = Reference(
    "nedic2017achieving",
    "Nedic, Angelia and Olshevsky, Alex and Shi, Wei",
    "Achieving geometric convergence for distributed optimization over time-varying graphs",
    "SIAM Journal on Optimization",
    2017,
    "article",
)
ACAR = Reference(
    "acar2021federated",
    "Acar, Durmus Alp Emre and Zhao, Yue and Matas, Ramon and Mattina, Matthew and Whatmough, Paul and "
    "Saligrama, Venkatesh",
    "Federated learning based on dynamic regularization",
    "International Conference on Learning Representations",
    2021,
)
JHUNJHUNWALA = Reference(
    "jhunjhunwala2023fedexp",
    "Jhunjhunwala, Divyansh and Wang, Shiqiang and Joshi, Gauri",
    "FedExP: speeding up federated averaging via extrapolation",
    "International Conference on Learning Representations",
    2023,
)
MITRA = Reference(
    "mitra2021linear",
    "Mitra, Aritra and Jaafar, Rayana and Pappas, George J. and Hassani, Hamed",
    "Linear convergence in federated learning: tackling client heterogeneity and sparse gradients",
    "Advances in Neural Information Processing Systems",
    2021,
)
MIME = Reference(
    "karimireddy2021breaking",
    "Karimireddy, Sai Praneeth and Jaggi, Martin and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank and "
    "Stich, Sebastian and Suresh, Ananda Theertha",
    "Breaking the centralized barrier for cross-device federated learning",
    "Advances in Neural Information Processing Systems",
    2021,
)
NEDIC_PUSH = Reference(
    "nedic2015distributed",
    "Nedic, Angelia and Olshevsky, Alex",
    "Distributed optimization over time-varying directed graphs",
    "IEEE Transactions on Automatic Control",
    2015,
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
NOCEDAL = Reference(
    "nocedal2006numerical",
    "Nocedal, Jorge and Wright, Stephen J.",
    "Numerical Optimization, chapters 3 and 7",
    "Springer, 2nd edition",
    2006,
    "misc",
)
DITTO = Reference(
    "li2021ditto",
    "Li, Tian and Hu, Shengyuan and Beirami, Ahmad and Smith, Virginia",
    "Ditto: fair and robust federated learning through personalization",
    "International Conference on Machine Learning",
    2021,
)
DINH = Reference(
    "dinh2020personalized",
    "T. Dinh, Canh and Tran, Nguyen H. and Nguyen, Tuan Dung",
    "Personalized federated learning with Moreau envelopes",
    "Advances in Neural Information Processing Systems",
    2020,
)
DENG = Reference(
    "deng2020adaptive",
    "Deng, Yuyang and Kamani, Mohammad Mahdi and Mahdavi, Mehrdad",
    "Adaptive personalized federated learning",
    "arXiv 2003.13461",
    2020,
    "misc",
)
CHENG = Reference(
    "cheng2021finetuning",
    "Cheng, Gary and Chadha, Karan and Duchi, John",
    "Fine-tuning is fine in federated learning",
    "arXiv 2108.07313",
    2021,
    "misc",
)
